"""Known bugs of whole models, each a change to the reference: they test the cases, and name an engine's bug.

A change wraps weights, inputs, operations or outputs from outside; the models' code has no hooks for it.
"""

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from refsd.components import unet as components_unet
from refsd.golden.judge import Mutant
from refsd.judges import wrong_ip_adapter as image_prompts
from refsd.judges import wrong_language_model, wrong_pages, wrong_texts
from refsd.judges import wrong_operations as operations
from refsd.judges import wrong_videos as videos
from refsd.models import clip, t5, vae_wan
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.tensor import StoredTensor, stored

Inputs = Mapping[str, np.ndarray]
# Weight name -> name of the weight used instead; name and values -> values used instead. None: unchanged.
Renamed = Callable[[str], str | None]
Revalued = Callable[[str, np.ndarray], np.ndarray | None]

# A weight within a numbered block; group 1 is the block.
_NUMBERED = re.compile(r"(.*?\.\d+)\.")


class Change(NamedTuple):
    """A bug, as a change to the reference.

    arithmetic: the operations, some of them wrong
    inputs:     inputs -> wrong inputs; None: the bug makes no difference
    rename:     swaps one weight for another
    revalue:    changes a weight's values
    outputs:    outputs -> wrong outputs; None: the bug makes no difference
    replaced:   (model's module, function's name, replacement): patched in while the model runs
    """

    arithmetic: type[Arithmetic] = Arithmetic
    inputs: Callable[[Inputs], Inputs | None] = lambda inputs: inputs
    rename: Renamed | None = None
    revalue: Revalued | None = None
    outputs: Callable[[Inputs], Inputs | None] = lambda outputs: outputs
    replaced: tuple[tuple[ModuleType, str, Any], ...] = ()

    @contextlib.contextmanager
    def in_models(self) -> Iterator[None]:
        """Patch the replaced functions into the models' modules until the context ends."""
        right = [(page, name, getattr(page, name)) for page, name, _ in self.replaced]
        try:
            for page, name, wrong in self.replaced:
                setattr(page, name, wrong)
            yield
        finally:
            for page, name, function in right:
                setattr(page, name, function)

    def within(self, prefix: str) -> "Change":
        """Return the change restricted to weights whose names start with `prefix`."""
        rename, revalue = self.rename, self.revalue
        return self._replace(
            rename=rename and (lambda name: rename(name) if name.startswith(prefix) else None),
            revalue=revalue and (lambda name, values: revalue(name, values) if name.startswith(prefix) else None),
        )

    @property
    def of_weights(self) -> bool:
        return self.rename is not None or self.revalue is not None


_BUCKET, _LAYER, _CONTROL = t5.relative_position_bucket, clip.layer, components_unet.controlnet


def _buckets(change: Callable[..., np.ndarray]) -> Change:
    return Change(replaced=((t5, "relative_position_bucket", change),))


def _buckets_of_a_decoder(distance, buckets, most):
    """T5 decoder's buckets: all for keys before the query; keys after it count as distance 0."""
    before = np.minimum(np.asarray(distance), 0)
    return _BUCKET(before, 2 * buckets, most)


def _ends(change: Callable[[np.ndarray, int], np.ndarray]) -> Change:
    return Change(replaced=((clip, "end_of_prompt", change),))


def _skips_the_last(m, x, *more):
    stem, _, index = m.prefix.rstrip(".").rpartition(".")
    last = f"{stem}.{int(index) + 1}.layer_norm1.weight" not in m.weights
    return x if last else _LAYER(m, x, *more)


def _twice(*arguments, **named):
    return [2 * part for part in _CONTROL(*arguments, **named)]


def _positions(change: Callable[[np.ndarray], np.ndarray]) -> Change:
    return Change(inputs=_change("positions", change))


_LAST_LEFT_OUT = Change(replaced=((clip, "layer", _skips_the_last),))
_ADDED_TWICE = Change(replaced=((components_unet, "controlnet", _twice),))


def _memory(*axes: int) -> Callable[[Inputs], Inputs | None]:
    """4-D outputs written to memory in another order of axes, and read in the right one."""

    def changed(outputs):
        if not any(y.ndim == 4 for y in outputs.values()):
            return None
        return {
            name: np.ascontiguousarray(y.transpose(axes)).reshape(y.shape) if y.ndim == 4 else y
            for name, y in outputs.items()
        }

    return changed


def _change(argument: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Inputs], Inputs | None]:
    def changed(inputs):
        return {**inputs, argument: change(inputs[argument])} if argument in inputs else None

    return changed


def _drop(*arguments: str) -> Callable[[Inputs], Inputs | None]:
    def dropped(inputs):
        left = {name: value for name, value in inputs.items() if name not in arguments}
        return left if len(left) < len(inputs) else None

    return dropped


def _first_of_batch(inputs: Inputs) -> Inputs:
    return {name: np.broadcast_to(value[:1], value.shape) for name, value in inputs.items()}


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


def _swap(*pairs: tuple[str, str]) -> Renamed:
    def renamed(name):
        for one, other in pairs:
            if one in name:
                return name.replace(one, other)
            if other in name:
                return name.replace(other, one)
        return None

    return renamed


def _transpose(name: str, values: np.ndarray) -> np.ndarray | None:
    return values.T if values.ndim == 2 and values.shape[0] == values.shape[1] else None


def _unscaled_norms(name: str, values: np.ndarray) -> np.ndarray | None:
    scale = name.endswith(".gamma") or (values.ndim == 1 and name.endswith((".weight", ".scale")))
    return np.ones_like(values) if scale else None


def _no_bias(name: str, values: np.ndarray) -> np.ndarray | None:
    return np.zeros_like(values) if name.endswith(".bias") else None


def _pictures(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Inputs], Inputs | None]:
    """Change the tensors with three channels: pictures and videos."""

    def changed(tensors):
        met = {name: change(x) for name, x in tensors.items() if x.ndim in (4, 5) and x.shape[1] == 3}
        return {**tensors, **met} if met else None

    return changed


def _of_thousand(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Inputs], Inputs | None]:
    """Change timesteps of 0..1000; leave those of 0..1, which are shares of the noise."""

    def changed(inputs):
        t = inputs.get("timesteps")
        return {**inputs, "timesteps": change(t)} if t is not None and np.max(t) > 1 else None

    return changed


def _backwards(t: np.ndarray) -> np.ndarray:
    return (1000 if np.max(t) > 1 else 1) - t


def _exchange(one: str, other: str) -> Callable[[Inputs], Inputs | None]:
    def exchanged(y):
        return {**y, one: y[other], other: y[one]} if one in y and other in y else None

    return exchanged


def _all(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Inputs], Inputs | None]:
    return lambda y: {name: change(x) for name, x in y.items()}


def _flip(name: str, values: np.ndarray) -> np.ndarray | None:
    return values[..., ::-1, ::-1] if values.ndim in (4, 5) and values.shape[-2] > 1 else None


def _flip_in_time(name: str, values: np.ndarray) -> np.ndarray | None:
    return values[:, :, ::-1] if values.ndim == 5 and values.shape[2] > 1 else None


def _video(wrong: Mapping[str, Callable]) -> Change:
    """Replace functions of the autoencoder of videos, by name."""
    return Change(replaced=tuple((vae_wan, name, function) for name, function in wrong.items()))


_Q_K = (("q_proj", "k_proj"), ("to_q", "to_k"), ("Attention.q.", "Attention.k."), (".q.", ".k."))
_K_V = (("k_proj", "v_proj"), ("to_k", "to_v"), ("Attention.k.", "Attention.v."), (".k.", ".v."))
_HEAD_NORMS = (
    ("norm_q", "norm_k"),
    ("norm_added_q", "norm_added_k"),
    ("query_norm", "key_norm"),
    ("q_norm", "k_norm"),
    ("ln_q", "ln_k"),
)
_NORMS = (
    *(
        ("layer_norm1", "layer_norm2"),
        ("input_layernorm", "post_attention_layernorm"),
        ("in_layers.0", "out_layers.0"),
    ),
    *(("attention_norm1", "attention_norm2"), ("ffn_norm1", "ffn_norm2"), ("norm1", "norm2")),
)

MUTANTS: tuple[Mutant[Change], ...] = (
    Mutant("RoPE turns the other pairs of channels (neighbours, halves)", Change(operations.OtherPairs)),
    Mutant("RoPE's axes stand in the reverse order", Change(operations.OtherAxes)),
    Mutant("RoPE's theta is 10000 (256 where it should be that)", Change(operations.OtherTheta)),
    Mutant("queries and keys are not normalised", Change(operations.NoHeadNorm)),
    Mutant("GELU is the other one (erf, tanh)", Change(operations.OtherGelu)),
    Mutant("GELU is quick GELU, or the reverse", Change(operations.QuickGelu)),
    Mutant("SiLU is GELU", Change(operations.GeluForSilu)),
    Mutant("eps is ten times too large", Change(operations.LargeEps)),
    Mutant("eps is ten times too small", Change(operations.SmallEps)),
    Mutant("sines and cosines of the time stand in the other order", Change(operations.SinesFirst)),
    Mutant("the time has the other shift of frequencies (0, 1)", Change(operations.ShiftedFrequencies)),
    Mutant("attention's scores are multiplied by 1 for 1/sqrt(D), or the reverse", Change(operations.OtherScale)),
    Mutant("attention has no mask", Change(operations.NoMask)),
    Mutant("heads of keys are taken in turn, not in groups", Change(operations.HeadsInTurn)),
    Mutant("going down a level pads both sides", Change(operations.PadsBothSides)),
    Mutant("going down a level pads the other side", Change(operations.PadsTheOtherSide)),
    Mutant("the time is 1000 times too small", Change(inputs=_change("timesteps", lambda t: t / 1000))),
    Mutant("the time is rounded to a whole number", Change(inputs=_change("timesteps", np.rint))),
    Mutant("the time is one too large", Change(inputs=_of_thousand(lambda t: t + 1))),
    Mutant("the time is one too small", Change(inputs=_of_thousand(lambda t: t - 1))),
    Mutant("the time runs backwards", Change(inputs=_change("timesteps", _backwards))),
    Mutant("the guidance is not embedded", Change(inputs=_change("guidance", np.zeros_like))),
    Mutant("the guidance is 1000 times too small", Change(inputs=_change("guidance", lambda g: g / 1000))),
    Mutant("the guidance is 1000 times too large", Change(inputs=_change("guidance", lambda g: 1000 * g))),
    Mutant("the pooled text is missing", Change(inputs=_change("y", np.zeros_like))),
    Mutant("the text is missing", Change(inputs=_change("context", np.zeros_like))),
    Mutant("the mask is not read", Change(inputs=_drop("context_mask", "attention_mask"))),
    *(Mutant(name, Change(inputs=change)) for name, change in wrong_texts.MASKS),
    Mutant("the reference is not read", Change(inputs=_drop("reference"))),
    Mutant("two references are swapped", Change(inputs=_exchange("reference", "reference_2"))),
    *(
        Mutant(name, Change(replaced=((page, function, instead),)))
        for name, page, function, instead in wrong_pages.ROWS
    ),
    *(Mutant(name, Change(replaced=((page, at, instead),))) for name, page, at, instead in image_prompts.ROWS),
    *(Mutant(name, Change(inputs=change)) for name, change in image_prompts.INPUTS),
    *(Mutant(name, Change(rename=_swap(*pairs))) for name, pairs in image_prompts.SWAPPED),
    Mutant("the hint is not read", Change(inputs=_change("hint", np.zeros_like))),
    Mutant("the second item of the batch reads the first", Change(inputs=_first_of_batch)),
    Mutant("a picture's channels are blue, green, red", Change(inputs=_pictures(lambda x: x[:, ::-1]))),
    Mutant("a picture of -1..1 is taken for one of 0..1", Change(inputs=_pictures(lambda x: 2 * x - 1))),
    Mutant("a picture of 0..1 is taken for one of -1..1", Change(inputs=_pictures(lambda x: (x + 1) / 2))),
    Mutant("shift and scale (or scale and gate) stand in the other order", Change(revalue=_swap_modulation)),
    Mutant("q, k and v stand as k, v, q", Change(revalue=_order_of_qkv(1, 2, 0))),
    Mutant("q and k are swapped", Change(rename=_swap(*_Q_K), revalue=_order_of_qkv(1, 0, 2))),
    Mutant("k and v are swapped", Change(rename=_swap(*_K_V), revalue=_order_of_qkv(0, 2, 1))),
    Mutant("the norms of q and k are swapped", Change(rename=_swap(*_HEAD_NORMS))),
    Mutant("a block's two norms are swapped", Change(rename=_swap(*_NORMS))),
    Mutant("norms have no scale", Change(revalue=_unscaled_norms)),
    Mutant("square matrices are transposed", Change(revalue=_transpose)),
    Mutant("convolutions are flipped", Change(revalue=_flip)),
    Mutant("biases are missing", Change(revalue=_no_bias)),
    Mutant("convolutions over frames are flipped in time", Change(revalue=_flip_in_time)),
    Mutant("convolutions over frames see the later frames, not the earlier", Change(videos.LaterFrames)),
    Mutant("convolutions over frames see a frame on each side", Change(videos.BothSidesInTime)),
    Mutant("convolutions over frames see each frame alone", Change(videos.FramesApart)),
    Mutant("convolutions over frames see one earlier frame, not two", Change(videos.OneFrameKept)),
    Mutant("before the first frame stands the first again, not zeros", Change(videos.FirstFrameRepeated)),
    Mutant("RMS norms of channels lack the factor sqrt(C)", Change(videos.NormsOfUnitLength)),
    *(Mutant(name, _video(wrong)) for name, wrong in videos.REPLACED.items()),
    Mutant("T5's gate and value are swapped", Change(rename=_swap(("wi_0", "wi_1")))),
    Mutant("the MLP's gate and value are swapped", Change(rename=_swap(("gate_proj", "up_proj")))),
    Mutant("token ids are one too small", Change(inputs=_change("input_ids", lambda ids: np.maximum(ids - 1, 0)))),
    Mutant("mean and logvar are swapped", Change(outputs=_exchange("mean", "logvar"))),
    Mutant("T5's distances have no direction", _buckets(lambda d, n, most: _BUCKET(-np.abs(d), n, most))),
    Mutant("T5's distances have the other direction", _buckets(lambda d, n, most: _BUCKET(-d, n, most))),
    Mutant("T5's distances have one direction alone, as a decoder's", _buckets(_buckets_of_a_decoder)),
    Mutant("T5's relative-position max_distance is halved", _buckets(lambda d, n, most: _BUCKET(d, n, most // 2))),
    Mutant("T5's distances are told apart twice as far", _buckets(lambda d, n, most: _BUCKET(d, n, 2 * most))),
    Mutant("the pooled text is at the largest id", _ends(lambda ids, eos: ids.argmax(axis=1))),
    Mutant("the pooled text is at the last token", _ends(lambda ids, eos: np.full(len(ids), ids.shape[1] - 1))),
    Mutant("the pooled text is at the first token", _ends(lambda ids, eos: np.zeros(len(ids), int))),
    Mutant("the pooled text is one token early", _ends(lambda ids, eos: np.argmax(ids == eos, axis=1) - 1)),
    Mutant("the last layer is left out (of the pooled text)", _LAST_LEFT_OUT),
    *(Mutant(name, Change(replaced=replaced)) for name, replaced in wrong_language_model.ROWS + wrong_texts.LAYERS),
    Mutant("M-RoPE turns by each token's number alone", Change(inputs=_drop("positions"))),
    Mutant("M-RoPE turns by the time alone", _positions(lambda p: np.repeat(p[..., :1], 3, axis=-1))),
    Mutant("M-RoPE's row and column are swapped", _positions(lambda p: p[..., [0, 2, 1]])),
    Mutant("M-RoPE's positions are one token late", _positions(lambda p: np.roll(p, 1, axis=1))),
    Mutant("what the ControlNet adds is added twice", _ADDED_TWICE),
    Mutant("the output's channels and rows are swapped in memory", Change(outputs=_memory(0, 2, 1, 3))),
    Mutant("the output's rows and columns are swapped in memory", Change(outputs=_memory(0, 1, 3, 2))),
    Mutant("the output's channels come last in memory", Change(outputs=_memory(0, 2, 3, 1))),
    Mutant("the output's sign is turned", Change(outputs=_all(np.negative))),
    Mutant("the output's channels are blue, green, red", Change(outputs=_pictures(lambda x: x[:, ::-1]))),
)  # fmt: skip


class ChangedWeights(Mapping[str, StoredTensor]):
    """A component's weights with a bug. `met` counts the accesses that it changed."""

    def __init__(self, weights: Mapping[str, StoredTensor], change: Change):
        self._weights, self._change, self.met = weights, change, 0

    def __getitem__(self, name: str) -> StoredTensor:
        other = self._change.rename(name) if self._change.rename else None
        if other is not None and other in self._weights and self._weights[other].shape == self._weights[name].shape:
            self.met += 1
            return self._weights[other]
        tensor = self._weights[name]
        values = self._change.revalue(name, np.asarray(tensor.values())) if self._change.revalue else None
        if values is None or np.array_equal(values, tensor.values()):
            return tensor
        self.met += 1
        return stored(np.ascontiguousarray(values))

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
