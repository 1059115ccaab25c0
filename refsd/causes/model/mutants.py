"""Known bugs of whole models, each a change to the reference: they test the cases, and name an engine's bug.

Here stand those that several networks can have; a network's own stand in its folder, refsd/models/NAME/bugs.py.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np

from refsd.golden.judge import Mutant
from refsd.models.catalogue import pages
from refsd.networks import wrong_operations as operations
from refsd.networks.bugs import Change, Inputs, Revalued, changing, dropping, exchanging
from refsd.numerics.tensor import StoredTensor, stored

# A weight within a numbered block; group 1 is the block.
_NUMBERED = re.compile(r"(.*?\.\d+)\.")
_OF_NORM = re.compile(r"norm\w*\.(weight|scale)$|\.gamma$")


def _memory(*axes: int) -> Callable[[Inputs], Inputs | None]:
    """4-D outputs written to memory in another order of axes, and read in the right one."""
    return _of_some(lambda y: y.ndim == 4, lambda y: np.ascontiguousarray(y.transpose(axes)).reshape(y.shape))


def _of_some(which: Callable[..., bool], change: Callable[..., np.ndarray]) -> Callable[[Inputs], Inputs | None]:
    def changed(tensors):
        met = {name: change(x) for name, x in tensors.items() if which(x)}
        return {**tensors, **met} if met else None

    return changed


def _masks(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Inputs], Inputs | None]:
    """Change the mask of the text; None where there is none."""

    def changed(inputs):
        name = next((name for name in ("attention_mask", "context_mask") if name in inputs), None)
        return {**inputs, name: change((np.asarray(inputs[name]) != 0).astype(int))} if name else None

    return changed


def _masking(change: Callable[[np.ndarray], np.ndarray]) -> Change:
    """Make another mask of scores of what is seen, in every network that makes one."""
    made = [page for page in pages("") if hasattr(page, "boolean_mask")]
    return Change(replaced=tuple((page, "boolean_mask", lambda seen, dtype: change(seen)) for page in made))


def _one_more(mask: np.ndarray) -> np.ndarray:
    """Unhide the first hidden token of each row."""
    return mask + ((mask == 0) & (np.cumsum(mask == 0, axis=1) == 1))


def _one_less(mask: np.ndarray) -> np.ndarray:
    """Hide the last shown token of each row."""
    return 1 - _one_more(1 - mask[:, ::-1])[:, ::-1]


_MODULATION = (
    "img_mod.1",
    "txt_mod.1",
    "norm_out.linear",
    "mod.lin",
    "adaLN_modulation.0",
    "adaLN_modulation.1",
    "modulation.lin",
)


def _swap_modulation(name: str, values: np.ndarray) -> np.ndarray | None:
    """Swap the first two chunks: shift and scale, or Z-Image's scale and gate."""
    module = name.rpartition(".")[0]
    if not module.endswith(_MODULATION):
        return None
    chunk = len(values) // _chunks(name)
    return np.concatenate([values[chunk : 2 * chunk], values[:chunk], values[2 * chunk :]])


def _chunks(name: str) -> int:
    if "final_layer" in name or "norm_out" in name:
        return 2
    if name.startswith(("layers.", "noise_refiner.")):
        return 4
    return 3 if "single" in name else 6


def _order_of_qkv(*order: int) -> Revalued:
    """Reorder the thirds of a fused qkv weight."""

    def reordered(name, values):
        fused = name.rpartition(".")[0].endswith("qkv")
        thirds = np.split(values, 3) if fused else []
        return np.concatenate([thirds[i] for i in order]) if fused else None

    return reordered


def _unscaled_norms(name: str, values: np.ndarray) -> np.ndarray | None:
    scale = name.endswith(".gamma") or (values.ndim == 1 and name.endswith((".weight", ".scale")))
    return np.ones_like(values) if scale else None


def _one_more_norm(name: str, values: np.ndarray) -> np.ndarray | None:
    """Count the 1 of 1 + weight twice: in the file, and in the engine."""
    return values + 1 if values.ndim == 1 and _OF_NORM.search(name) else None


def _pictures(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Inputs], Inputs | None]:
    """Change the tensors with three channels: pictures and videos."""
    return _of_some(lambda x: x.ndim in (4, 5) and x.shape[1] == 3, change)


def _of_thousand(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Inputs], Inputs | None]:
    """Change timesteps of 0..1000; leave those of 0..1, which are shares of the noise."""

    def changed(inputs):
        t = inputs.get("timesteps")
        return {**inputs, "timesteps": change(t)} if t is not None and np.max(t) > 1 else None

    return changed


def _exchange(one: str, other: str) -> Callable[[Inputs], Inputs | None]:
    def exchanged(y):
        return {**y, one: y[other], other: y[one]} if one in y and other in y else None

    return exchanged


def _all(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Inputs], Inputs | None]:
    return lambda y: {name: change(x) for name, x in y.items()}


_Q_K = (("q_proj", "k_proj"), ("to_q", "to_k"), ("Attention.q.", "Attention.k."), (".q.", ".k."))
_K_V = (("k_proj", "v_proj"), ("to_k", "to_v"), ("Attention.k.", "Attention.v."), (".k.", ".v."))
_HEAD_NORMS = (
    ("norm_q", "norm_k"),
    ("norm_added_q", "norm_added_k"),
    ("query_norm", "key_norm"),
    ("q_norm", "k_norm"),
    ("ln_q", "ln_k"),
)
_OTHER_STREAM = (
    *(("norm_added_q", "norm_q"), ("norm_added_k", "norm_k"), ("txt_attn.norm", "img_attn.norm")),
    ("context_block.attn.ln_", "x_block.attn.ln_"),
)
# Where the names of a stream's weights have one of these; "" is in every name.
_OF_STREAM = {"": ("",), ", of the text's stream": ("txt", "added"), ", of the picture's stream": ("img",)}


def _norms_of_heads(stream: tuple[str, ...], one_way: bool, turned: bool) -> Change:
    """Exchange the norms of queries and keys in a stream; one_way: one reads the other's weights; turned: which."""
    pairs = [(b, a) if turned else (a, b) for a, b in _HEAD_NORMS]
    both = pairs if one_way else [*pairs, *((b, a) for a, b in pairs)]

    def renamed(name: str) -> str | None:
        met = any(mark in name for mark in stream)
        return next((name.replace(a, b) for a, b in both if met and a in name), None)

    return Change(rename=renamed)


def _no_norms_of_heads(stream: tuple[str, ...]) -> Change:
    """Leave out the norms of queries and keys in a stream."""
    names = [name for pair in _HEAD_NORMS for name in pair]

    def gone(name: str, values: np.ndarray) -> np.ndarray | None:
        met = values.ndim == 1 and any(mark in name for mark in stream) and any(one in name for one in names)
        return np.full_like(values, np.nan) if met else None

    return Change(operations.NormedIfWeighted, revalue=gone)


_NORMS = (
    *(("layer_norm1", "layer_norm2"), ("input_layernorm", "post_attention_layernorm")),
    ("in_layers.0", "out_layers.0"),
    *(("attention_norm1", "attention_norm2"), ("ffn_norm1", "ffn_norm2"), ("norm1", "norm2")),
)

MUTANTS: tuple[Mutant[Change], ...] = (
    Mutant("RoPE turns the other pairs of channels (neighbours, halves)", Change(operations.OtherPairs)),
    Mutant("RoPE's axes stand in the reverse order", Change(operations.OtherAxes)),
    Mutant("RoPE's theta is 10000 (256 where it should be that)", Change(operations.OtherTheta)),
    Mutant("queries and keys are not normalised", Change(operations.NoHeadNorm)),
    Mutant("the norms of queries and keys come behind RoPE", Change(operations.NormBehindRope)),
    Mutant("GELU is the other one (erf, tanh)", Change(operations.OtherGelu)),
    Mutant("GELU is quick GELU, or the reverse", Change(operations.QuickGelu)),
    Mutant("SiLU is GELU", Change(operations.GeluForSilu)),
    Mutant("eps is ten times too large", Change(operations.LargeEps)),
    Mutant("eps is ten times too small", Change(operations.SmallEps)),
    Mutant("sines and cosines of the time stand in the other order", Change(operations.SinesFirst)),
    Mutant("the time has the other shift of frequencies (0, 1)", Change(operations.ShiftedFrequencies)),
    Mutant("attention's scores are multiplied by 1 for 1/sqrt(D), or the reverse", Change(operations.OtherScale)),
    Mutant("attention's scores are multiplied by 1/D", Change(operations.ScaleWithoutRoot)),
    Mutant("values are rotated, as queries and keys are", Change(operations.RotatedValues)),
    Mutant("attention has no mask", Change(operations.NoMask)),
    Mutant("heads of keys are taken in turn, not in groups", Change(operations.HeadsInTurn)),
    Mutant("going down a level pads both sides", Change(operations.PadsBothSides)),
    Mutant("going down a level pads the other side", Change(operations.PadsTheOtherSide)),
    Mutant("the time is 1000 times too small", changing("timesteps", lambda t: t / 1000)),
    Mutant("the time is rounded to a whole number", changing("timesteps", np.rint)),
    Mutant("the time is one too large", Change(inputs=_of_thousand(lambda t: t + 1))),
    Mutant("the time is one too small", Change(inputs=_of_thousand(lambda t: t - 1))),
    Mutant("the time runs backwards", changing("timesteps", lambda t: (1000 if np.max(t) > 1 else 1) - t)),
    Mutant("the guidance is not embedded", changing("guidance", np.zeros_like)),
    Mutant("the guidance is 1000 times too small", changing("guidance", lambda g: g / 1000)),
    Mutant("the guidance is 1000 times too large", changing("guidance", lambda g: 1000 * g)),
    Mutant("the pooled text is missing", changing("y", np.zeros_like)),
    Mutant("the text is missing", changing("context", np.zeros_like)),
    Mutant("the mask is not read", dropping("context_mask", "attention_mask")),
    Mutant("the attention mask is inverted: padding for text", Change(inputs=_masks(lambda mask: 1 - mask))),
    Mutant("the mask's ones and zeros are added to the scores: none is hidden", _masking(lambda seen: 1.0 * seen)),
    Mutant("every item has the first item's mask", Change(inputs=_masks(lambda mask: mask[[0] * len(mask)]))),
    Mutant("the mask has one token more", Change(inputs=_masks(_one_more))),
    Mutant("the mask has one token less", Change(inputs=_masks(_one_less))),
    Mutant("the reference is not read", dropping("reference")),
    Mutant("two references are swapped", Change(inputs=_exchange("reference", "reference_2"))),
    Mutant("the second item of the batch reads the first", Change(inputs=_all(lambda x: x[[0] * len(x)]))),
    Mutant("a picture's channels are blue, green, red", Change(inputs=_pictures(lambda x: x[:, ::-1]))),
    Mutant("a picture of -1..1 is taken for one of 0..1", Change(inputs=_pictures(lambda x: 2 * x - 1))),
    Mutant("a picture of 0..1 is taken for one of -1..1", Change(inputs=_pictures(lambda x: (x + 1) / 2))),
    Mutant("shift and scale (or scale and gate) stand in the other order", Change(revalue=_swap_modulation)),
    Mutant("q, k and v stand as k, v, q", Change(revalue=_order_of_qkv(1, 2, 0))),
    Mutant("q and k are swapped", Change(rename=exchanging(*_Q_K).rename, revalue=_order_of_qkv(1, 0, 2))),
    Mutant("k and v are swapped", Change(rename=exchanging(*_K_V).rename, revalue=_order_of_qkv(0, 2, 1))),
    *(
        Mutant(f"{bug}{of}", _norms_of_heads(stream, one_way, turned))
        for bug, one_way, turned in (
            ("the norm of q has the weights of k's", True, False),
            ("the norm of k has the weights of q's", True, True),
            ("the norms of q and k are swapped", False, False),
        )
        for of, stream in _OF_STREAM.items()
    ),
    *(
        Mutant(f"queries and keys are not normalised{of}", _no_norms_of_heads(stream))
        for of, stream in [*_OF_STREAM.items()][1:]
    ),
    Mutant("the norms of q and k are those of the other stream", exchanging(*_OTHER_STREAM)),
    Mutant("a block's two norms are swapped", exchanging(*_NORMS)),
    Mutant("norms have no scale", Change(revalue=_unscaled_norms)),
    Mutant("1 is added to the weights of norms once more", Change(revalue=_one_more_norm)),
    Mutant("square matrices are transposed",
        Change(revalue=lambda _, y: y.T if y.ndim == 2 and y.shape[0] == y.shape[1] else None),
    ),
    Mutant("convolutions are flipped",
        Change(revalue=lambda _, y: y[..., ::-1, ::-1] if y.ndim in (4, 5) and y.shape[-2] > 1 else None),
    ),
    Mutant("biases are missing", Change(revalue=lambda name, y: 0 * y if name.endswith(".bias") else None)),
    Mutant("token ids are one too small", changing("input_ids", lambda ids: np.maximum(ids - 1, 0))),
    Mutant("mean and logvar are swapped", Change(outputs=_exchange("mean", "logvar"))),
    Mutant("the output's channels and rows are swapped in memory", Change(outputs=_memory(0, 2, 1, 3))),
    Mutant("the output's rows and columns are swapped in memory", Change(outputs=_memory(0, 1, 3, 2))),
    Mutant("the output's channels come last in memory", Change(outputs=_memory(0, 2, 3, 1))),
    Mutant("the output's sign is turned", Change(outputs=_all(np.negative))),
    Mutant("the output's channels are blue, green, red", Change(outputs=_pictures(lambda x: x[:, ::-1]))),
    *(bug for page in pages("bugs") for bug in page.BUGS),
)  # fmt: skip


class ChangedWeights(Mapping[str, StoredTensor]):
    """A component's weights with a bug. `met` counts the accesses that it changed."""

    def __init__(self, weights: Mapping[str, StoredTensor], change: Change):
        self._weights, self._change, self.met = weights, change, 0
        self._same: set[str] = set()  # names of weights that the bug leaves as they are

    def __getitem__(self, name: str) -> StoredTensor:
        changed = None if name in self._same else self._changed(name)
        if changed is None:
            self._same.add(name)
        self.met += changed is not None
        return self._weights[name] if changed is None else changed

    def _changed(self, name: str) -> StoredTensor | None:
        """Return what the bug makes of a weight; None if it leaves it as it is."""
        other = self._change.rename(name) if self._change.rename else None
        if other is not None and other in self._weights and self._weights[other].shape == self._weights[name].shape:
            return self._weights[other]
        if self._change.revalue is None:
            return None
        tensor = self._weights[name]
        values = self._change.revalue(name, np.asarray(tensor.values()))
        same = values is None or np.array_equal(values, tensor.values())
        return None if same else stored(np.ascontiguousarray(values))

    def none_changed(self) -> bool:
        """Return True if the bug is one of weights, and leaves all of these as they are."""
        return self._change.of_weights and all(self._changed(name) is None for name in self._weights)

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)

    def __contains__(self, name: object) -> bool:
        return name in self._weights


def in_each_block(names: Iterable[str]) -> Iterator[Mutant[Change]]:
    """Yield each known bug of weights, restricted to one numbered block at a time. names: of the weights"""
    blocks = dict.fromkeys(match[1] for match in map(_NUMBERED.match, names) if match)
    for name, change in MUTANTS:
        if change.of_weights:
            for block in blocks:
                yield Mutant(f"{name} in {block}", change.within(f"{block}."))
