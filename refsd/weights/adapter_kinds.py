"""Build an adapter from its tensors in a file: find its kind and scale, check its shapes against the layer."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from refsd.kernels.adapters import IA3, Adapter, Full, GLoRA, InputRotation, LoHa, LoKr, LoRA, OutputRotation
from refsd.kernels.adapters.boft import butterfly, butterfly_inputs
from refsd.kernels.adapters.oft import Stage, diagonal
from refsd.kernels.adapters.rotation import cayley_inverse, cayley_neumann, limited_each, skew, skew_from_upper
from refsd.kernels.adapters.scales import alpha_over_rank, alpha_over_root, lokr_rank, lokr_scale, lokr_scale_peft
from refsd.numerics.tensor import StoredTensor
from refsd.weights.adapter_rules import RULES, TRAINER, rule_of
from refsd.weights.adapter_settings import ModuleSettings

Shape = tuple[int, ...]


class Misfit(Exception):
    """An adapter's part does not fit its layer; the message is a few words."""


class Parts:
    """The parts (named tensors) of one layer's adapter in a file.

    tensors:  part -> StoredTensor
    shape:    shape of the layer's weight
    expand:   StoredTensor -> its values, in the compute dtype
    settings: PEFT's settings of this layer
    rule:     one of adapter_rules.NAMES
    """

    def __init__(
        self,
        tensors: Mapping[str, StoredTensor],
        shape: Shape,
        expand: Callable[[StoredTensor], np.ndarray],
        settings: ModuleSettings | None = None,
        rule: str = TRAINER,
    ):
        self.tensors = tensors
        self.shape = shape
        self.expand = expand
        self.settings = settings or ModuleSettings()
        self.kind = kind_of(tensors)
        self.rule = rule_of(rule, self.kind or "", tensors)

    def __contains__(self, part: str) -> bool:
        return part in self.tensors

    @property
    def taps(self) -> int:
        """Number of filter positions (R * S); 1 for a linear layer."""
        return math.prod(self.shape[2:])

    def dims(self, part: str, rank: int) -> Shape:
        """Return the first `rank` axes of a part's shape. Raises Misfit unless all further axes are 1."""
        shape = self.tensors[part].shape
        if len(shape) < rank or any(n != 1 for n in shape[rank:]) or 0 in shape:
            raise Misfit(f"{part} {list(shape)} does not have {rank} axes")
        return shape[:rank]

    def rank(self, part: str) -> int:
        """Return the length of a part's first axis."""
        shape = self.tensors[part].shape
        if not shape or 0 in shape:
            raise Misfit(f"{part} {list(shape)} is empty")
        return shape[0]

    def get(self, part: str, *shape: int):
        """Return a part as an array of this shape. The file may split the axes after the first differently."""
        tensor = self.tensors[part]
        if math.prod(tensor.shape) != math.prod(shape) or tensor.shape[:1] != shape[:1]:
            raise Misfit(f"{part} {list(tensor.shape)} for {list(shape)}")
        return self.expand(tensor).reshape(shape)

    @property
    def alpha(self) -> float | None:
        if "alpha" in self:
            if math.prod(self.tensors["alpha"].shape) != 1:
                raise Misfit(f"alpha {list(self.tensors['alpha'].shape)} for one number")
            return float(np.asarray(self.tensors["alpha"].values(), np.float64).reshape(()))
        return self.settings.alpha

    def scale(self, rank: int) -> float:
        alpha = self.alpha
        if alpha is not None and "alpha" not in self and self.settings.rslora:
            return alpha_over_root(alpha, rank)
        return alpha_over_rank(alpha, rank)


def _lora(p: Parts) -> LoRA:
    O, I = p.shape[:2]
    K = p.dims("up", 2)[1]
    up = p.get("up", O, K)
    if p.settings.dora and "magnitude" not in p:
        raise Misfit("use_dora in its PEFT settings, and no lora_magnitude_vector")
    bias = _vector(p, "up_bias", O) if "up_bias" in p else None
    if "mid" in p:
        return LoRA(p.get("down", K, I), up, p.get("mid", K, K, *p.shape[2:]), p.scale(K), bias)
    return LoRA(p.get("down", K, *p.shape[1:]), up, None, p.scale(K), bias)


def _loha(p: Parts) -> LoHa:
    O, I = p.shape[:2]
    K = p.rank("hada_w1_b")
    scale = p.scale(K)
    if "hada_t1" not in p:
        a, b = (O, K), (K, I * p.taps)
        return LoHa(
            p.get("hada_w1_a", *a),
            p.get("hada_w1_b", *b),
            p.get("hada_w2_a", *a),
            p.get("hada_w2_b", *b),
            scale=scale,
        )
    a, b, core = (K, O), (K, I), (K, K, *p.shape[2:])
    parts = (
        ("hada_w1_a", a),
        ("hada_w1_b", b),
        ("hada_w2_a", a),
        ("hada_w2_b", b),
        ("hada_t1", core),
        ("hada_t2", core),
    )
    return LoHa(*(p.get(part, *shape) for part, shape in parts), scale=scale)


def _lokr(p: Parts) -> LoKr:
    O, I = p.shape[:2]
    w1_rank = w2_rank = None
    if "lokr_w1" in p:
        O1, I1 = p.dims("lokr_w1", 2)
        w1 = p.get("lokr_w1", O1, I1)
    else:
        (O1, w1_rank), (_, I1) = p.dims("lokr_w1_a", 2), p.dims("lokr_w1_b", 2)
        w1 = p.get("lokr_w1_a", O1, w1_rank), p.get("lokr_w1_b", w1_rank, I1)
    if O % O1 or I % I1:
        raise Misfit(f"lokr_w1 {[O1, I1]} does not divide {[O, I]}")
    O2, I2 = O // O1, I // I1
    if "lokr_w2" in p:
        w2 = p.get("lokr_w2", O2, I2, *p.shape[2:])
    else:
        w2_rank = p.rank("lokr_w2_b")
        if "lokr_t2" in p:
            core = p.get("lokr_t2", w2_rank, w2_rank, *p.shape[2:])
            w2 = p.get("lokr_w2_a", w2_rank, O2), p.get("lokr_w2_b", w2_rank, I2), core
        else:
            w2 = p.get("lokr_w2_a", O2, w2_rank), p.get("lokr_w2_b", w2_rank, I2 * p.taps)
    rank = lokr_rank(w1_rank, w2_rank)
    if "alpha" not in p and p.settings.rank and p.alpha is not None:
        return LoKr(w1, w2, lokr_scale_peft(p.alpha, p.settings.rank), rank)
    return LoKr(w1, w2, lokr_scale(p.alpha, rank), rank)


def _glora(p: Parts) -> GLoRA:
    O, I = p.shape[:2]
    K = p.rank("a2")
    b2 = p.get("b2", K, *p.shape[1:])
    return GLoRA(p.get("a1", I, K), p.get("a2", K, I), p.get("b1", O, K), b2, p.scale(K))


def _oft(p: Parts) -> OutputRotation:
    """Build LyCORIS's diag_oft [n, b, b] or boft [m, n, b, b]. alpha limits all blocks together; 0: no limit."""
    O = p.shape[0]
    shape = p.tensors["oft_blocks"].shape
    p.rank("oft_blocks")
    if len(shape) not in (3, 4) or shape[-1] != shape[-2] or shape[-3] * shape[-1] != O:
        raise Misfit(f"oft_blocks {list(shape)} for blocks of {O} outputs")
    if len(shape) == 4 and (
        shape[-1] % 2 or 2 ** (shape[0] - 1) * shape[-1] > O or O % (2 ** (shape[0] - 1) * shape[-1])
    ):
        raise Misfit(f"oft_blocks {list(shape)}: {O} outputs have no such butterfly")
    if len(shape) == 4 and p.rule is RULES["comfyui"] and p.alpha is None:
        raise Misfit("a BOFT without alpha, which ComfyUI does not apply")
    q = p.rule.limit(skew(p.get("oft_blocks", *shape)), p.alpha or 0.0, O)
    gain = p.get("rescale", O) if "rescale" in p and (len(shape) == 4 or p.rule.rescales) else None
    return OutputRotation(diagonal(q) if len(shape) == 3 else butterfly(q), gain, p.rule.turn)


def _oft_input(p: Parts) -> InputRotation:
    inputs = p.shape[1] * p.taps
    n, values = p.dims("oft_r", 2)
    size = int((1 + np.sqrt(1 + 8 * values)) / 2)
    shared = p.settings.block_share
    if size * (size - 1) != 2 * values or inputs % size or n != (1 if shared else inputs // size):
        raise Misfit(f"oft_R {[n, values]} for blocks of {inputs} inputs")
    q = skew_from_upper(p.get("oft_r", n, values), size)
    if "scaled_oft" in p and _flag(p, "scaled_oft"):
        q = q / q.dtype.type(2 * np.sqrt(size - 1))  # OneTrainer, modules/module/oft_utils.py
    if p.settings.coft is not None:
        q = limited_each(q, p.settings.coft)
    blocks = cayley_inverse(q) if p.settings.terms is None else cayley_neumann(q, p.settings.terms)
    return InputRotation((Stage(np.repeat(blocks, inputs // size, axis=0) if shared else blocks),))


def _boft_input(p: Parts) -> InputRotation:
    inputs = p.shape[1] * p.taps
    m, n, b, c = p.dims("boft_r", 4)
    if b != c or n * b != inputs or (m > 1 and (b % 2 or inputs % (2 ** (m - 1) * b))):
        raise Misfit(f"boft_R {[m, n, b, c]} for blocks of {inputs} inputs")
    gain = p.expand(p.tensors["boft_s"]).reshape(-1)
    if len(gain) != p.shape[0]:
        raise Misfit(f"boft_s {list(p.tensors['boft_s'].shape)} for {p.shape[0]} outputs")
    return InputRotation(butterfly_inputs(p.get("boft_r", m, n, b, b)), gain)


def _ia3(p: Parts) -> IA3:
    """Build LyCORIS's IA3; the file stores gain - 1."""
    on_input = _flag(p, "on_input")
    return IA3(1 + _vector(p, "weight", p.shape[1 if on_input else 0]), on_input)


def _flag(p: Parts, part: str) -> bool:
    if math.prod(p.tensors[part].shape) != 1:
        raise Misfit(f"{part} {list(p.tensors[part].shape)} for one number")
    return bool(p.tensors[part].values().reshape(()))


def _ia3_peft(p: Parts) -> IA3:
    """Build PEFT's IA3: a column scales the outputs, a row the inputs; for a convolution's [1, C, 1, 1] PEFT's
    settings (feedforward_modules) decide.
    """
    shape = p.tensors["ia3_l"].shape
    on_input = shape[:1] == (1,) if len(shape) == 2 else p.settings.feedforward
    return IA3(_vector(p, "ia3_l", p.shape[1 if on_input else 0]), on_input, on_bias=not on_input)


def _full(p: Parts) -> Full:
    diff = p.get("diff", *p.shape) if "diff" in p else None
    return Full(diff, _vector(p, "diff_b", p.shape[0]) if "diff_b" in p else None)


def _norm(p: Parts) -> Full:
    return Full(_vector(p, "w_norm", p.shape[0]), _vector(p, "b_norm", p.shape[0]) if "b_norm" in p else None)


def _vector(p: Parts, part: str, n: int):
    values = p.expand(p.tensors[part]).reshape(-1)
    if len(values) != n:
        raise Misfit(f"{part} {list(p.tensors[part].shape)} for {n} numbers")
    return values


class Kind(NamedTuple):
    """A kind of adapter.

    needs: parts that every adapter of this kind has
    may:   optional parts
    axes:  numbers of axes that the layer's weight may have: 2 and 4, or 1 for a norm
    make:  function that builds the adapter from its parts
    """

    needs: tuple[str, ...]
    may: tuple[str, ...]
    axes: tuple[int, ...]
    make: Callable[[Parts], Adapter]


_LAYER = (2, 4)
# `scalar`: LyCORIS's learned factor of the change, as a module holds it; what it saves has it in the first factor.
_DECOMPOSED = ("alpha", "dora_scale", "magnitude", "scalar")
KINDS: dict[str, Kind] = {
    "lora": Kind(("down", "up"), ("mid", "up_bias", *_DECOMPOSED), _LAYER, _lora),
    "loha": Kind(
        ("hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b"), ("hada_t1", "hada_t2", *_DECOMPOSED), _LAYER, _loha
    ),
    "lokr": Kind(
        (),
        ("lokr_w1", "lokr_w1_a", "lokr_w1_b", "lokr_w2", "lokr_w2_a", "lokr_w2_b", "lokr_t2", *_DECOMPOSED),
        _LAYER,
        _lokr,
    ),
    "glora": Kind(("a1", "a2", "b1", "b2"), ("alpha",), _LAYER, _glora),
    "oft": Kind(("oft_blocks",), ("rescale", "alpha"), _LAYER, _oft),
    "oft of PEFT": Kind(("oft_r",), ("scaled_oft",), _LAYER, _oft_input),
    "boft of PEFT": Kind(("boft_r", "boft_s"), (), _LAYER, _boft_input),
    "ia3": Kind(("weight", "on_input"), (), _LAYER, _ia3),
    "ia3 of PEFT": Kind(("ia3_l",), (), _LAYER, _ia3_peft),
    "full": Kind((), ("diff", "diff_b", "alpha"), _LAYER, _full),
    "norm": Kind(("w_norm",), ("b_norm",), (1,), _norm),
}
# Parts that come in pairs, and parts of which one is required.
_TOGETHER = (
    ("hada_t1", "hada_t2"),
    ("lokr_w1_a", "lokr_w1_b"),
    ("lokr_w2_a", "lokr_w2_b"),
)
_EITHER = {"lokr": (("lokr_w1", "lokr_w1_a"), ("lokr_w2", "lokr_w2_a")), "full": (("diff", "diff_b"),)}


def kind_of(parts: Iterable[str]) -> str | None:
    """Return the key of KINDS that needs these parts and allows no fewer and no others; None if there is none."""
    there = set(parts)
    for name, (needs, may, _, _) in KINDS.items():
        if (
            there.issuperset(needs)
            and there.issubset({*needs, *may})
            and all((a in there) == (b in there) for a, b in _TOGETHER)
            and all(there & set(choice) for choice in _EITHER.get(name, ()))
        ):
            return name
    return None


def build(parts: Parts) -> Adapter:
    """Build the adapter from its parts. Raises Misfit if they match no kind or do not fit the layer."""
    if parts.kind is None:
        raise Misfit(f"{', '.join(sorted(parts.tensors))} make no adapter")
    kind = KINDS[parts.kind]
    if len(parts.shape) not in kind.axes:
        raise Misfit(f"{parts.kind} for a weight {list(parts.shape)}")
    if parts.kind not in parts.rule.kinds:
        raise Misfit(f"{parts.kind}, which {parts.rule.title} does not load")
    adapter: Any = kind.make(parts)
    if "scalar" in parts:
        if parts.rule is not RULES["lycoris"]:
            raise Misfit(f"a learned scalar, which {parts.rule.title} does not read")
        adapter = adapter._replace(scale=adapter.scale * float(_vector(parts, "scalar", 1)[0]))
    return _dora(parts, adapter) if parts.tensors.keys() & {"dora_scale", "magnitude"} else adapter


def _dora(p: Parts, inner) -> Adapter:
    part = "magnitude" if "magnitude" in p else "dora_scale"
    if part not in p.rule.decomposed:
        if p.rule.ignores:
            return inner
        raise Misfit(f"{part}, which {p.rule.title} does not load")
    if getattr(inner, "bias", None) is not None:
        raise Misfit("a DoRA whose LoRA has a bias")
    shape = p.tensors[part].shape
    on_input = part == "dora_scale" and len(shape) > 1 and shape[0] == 1 != p.shape[0]
    adapter = p.rule.decompose(inner, _vector(p, part, p.shape[1 if on_input else 0]), on_input)
    if adapter is None:
        what = "columns" if on_input else f"a {p.kind}"
        raise Misfit(f"{part} of {what}, which {p.rule.title} does not load")
    return adapter
