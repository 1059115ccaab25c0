"""Known bugs of adapters."""

import math

import numpy as np

from refsd.golden.mutants.mutant import BATCH, F16_INPUT, IMAGE, Mutant, Wrong, answer, other_input, to_float16
from refsd.golden.operations.adapters import lokr_ranks
from refsd.golden.tensor import stored


def _rank_of(op, inputs) -> tuple[int | None, int]:
    return inputs["down"].shape[:2] if op.startswith("lora") else lokr_ranks(inputs)


def other_scale(change) -> Wrong:
    """alpha replaced by change(alpha, rank, columns); None where that leaves it, or nothing is divided."""

    def wrong(op, inputs, params):
        alpha, (rank, columns) = params["alpha"], _rank_of(op, inputs)
        if alpha is None or rank is None:
            return None
        other = change(alpha, rank, columns)
        return None if other in (None, alpha) else answer(op, inputs, {**params, "alpha": other})

    return wrong


def alpha_in_full(op, inputs, params):
    """Both factors in full, and alpha over the rank that was asked for (here 4) all the same: PEFT's rule."""
    if params["alpha"] is None or _rank_of(op, inputs)[0] is not None:
        return None
    return answer(op, inputs, params) * np.float32(params["alpha"] / 4)


def _full(inputs) -> tuple[np.ndarray, np.ndarray]:
    w1, w2 = (
        inputs[w].values() if w in inputs else np.tensordot(inputs[f"{w}_a"].values(), inputs[f"{w}_b"].values(), 1)
        for w in ("w1", "w2")
    )
    return np.asarray(w1, np.float32), np.asarray(w2, np.float32)


def _scale(op, inputs, params) -> float:
    rank, _ = _rank_of(op, inputs)
    return 1.0 if rank is None or params["alpha"] is None else params["alpha"] / rank


def _as_layer(op, inputs, params, delta):
    """The answer of a layer with this delta."""
    weight = {"x": inputs["x"], "weight": stored(np.ascontiguousarray(delta, np.float32))}
    if op == "lokr":
        return answer("linear", weight, {})
    return answer(
        "conv2d", weight, {k: v for k, v in params.items() if k != "alpha"} | {"dilation": 1, "groups": 1}
    )


def exchanged(op, inputs, params):
    """kron(W2, W1): the fast factor slow."""
    w1, w2 = _full(inputs)
    delta = np.stack([np.kron(tap, w1) for tap in np.moveaxis(w2.reshape(*w2.shape[:2], -1), -1, 0)], axis=-1)
    shape = (len(w1) * len(w2), w1.shape[1] * w2.shape[1], *w2.shape[2:])
    return _as_layer(op, inputs, params, _scale(op, inputs, params) * delta.reshape(shape))


def interpolated(op, inputs, params):
    """W1 stretched over the filter's taps where it should be over the channels (stable-diffusion.cpp, merged)."""
    w1, w2 = _full(inputs)
    if w2.ndim == 2:
        return None
    O2, I2, R, S = w2.shape
    stretched = np.repeat(np.repeat(w1, R, axis=0), S, axis=1)  # [O1 R, I1 S]
    delta = stretched[None, None] * np.tile(w2, (1, 1, len(w1), w1.shape[1]))
    shape = (len(w1) * O2, w1.shape[1] * I2, R, S)
    return _as_layer(op, inputs, params, _scale(op, inputs, params) * delta.reshape(shape))


def input_folded(op, inputs, params):
    """x read as [I2, I1] where it is [I1, I2]."""
    w1, w2 = _full(inputs)
    x, axis = inputs["x"].values(), -1 if op == "lokr" else 1
    channels = np.moveaxis(x, axis, -1)
    turned = (
        channels.reshape(*channels.shape[:-1], w2.shape[1], w1.shape[1]).swapaxes(-1, -2).reshape(channels.shape)
    )
    return answer(op, {**inputs, "x": stored(np.ascontiguousarray(np.moveaxis(turned, -1, axis)))}, params)


def output_unfolded(op, inputs, params):
    """y left as [O2, O1] where it is [O1, O2]."""
    w1, w2 = _full(inputs)
    axis = -1 if op == "lokr" else 1
    y = np.moveaxis(answer(op, inputs, params), axis, -1)
    turned = y.reshape(*y.shape[:-1], len(w1), len(w2)).swapaxes(-1, -2).reshape(y.shape)
    return np.moveaxis(turned, -1, axis)


def _read_as_transposed(name) -> Wrong:
    return other_input(name, lambda w: w.reshape(w.shape[::-1]).T if w.ndim == 2 and 1 not in w.shape else None)


_SCALES = (
    Mutant("alpha ignored", other_scale(lambda alpha, rank, columns: rank)),
    Mutant("scale twice", other_scale(lambda alpha, rank, columns: alpha**2 / rank)),
    Mutant("alpha not divided by the rank", other_scale(lambda alpha, rank, columns: alpha * rank)),
    Mutant("alpha over the root of the rank", other_scale(lambda alpha, rank, columns: alpha * math.sqrt(rank))),
    Mutant(
        "a rank of 1 read as the columns", other_scale(lambda a, rank, columns: a / columns if rank == 1 else None)
    ),
)
_LORA = (*_SCALES, Mutant("up read as its transpose", _read_as_transposed("up")), BATCH, F16_INPUT)
_LOKR = (
    *_SCALES,
    Mutant("a rank of 1 makes the scale 1", other_scale(lambda alpha, rank, columns: 1.0 if rank == 1 else None)),
    Mutant("alpha counts though both factors are in full", alpha_in_full),
    Mutant("W1 and W2 exchanged", exchanged),
    Mutant("input folded the other way", input_folded),
    Mutant("output unfolded the other way", output_unfolded),
    Mutant("W1 read as its transpose", _read_as_transposed("w1")),
    Mutant("W1 silently float16", other_input("w1", to_float16)),
    BATCH,
    F16_INPUT,
)
_FLIPPED = tuple(
    Mutant(f"filter flipped ({name})", other_input(name, lambda w: w[:, :, ::-1, ::-1] if w.ndim == 4 else None))
    for name in ("w2", "w2_b")
)
MUTANTS: dict[str, tuple[Mutant, ...]] = {
    "lora": (Mutant("down read as its transpose", _read_as_transposed("down")), *_LORA),
    "lora_conv2d": (
        Mutant("filter flipped", other_input("down", lambda w: w[:, :, ::-1, ::-1])),
        IMAGE,
        *_LORA,
    ),
    "lokr": _LOKR,
    "lokr_conv2d": (
        Mutant("W1 stretched over the taps", interpolated),
        *_FLIPPED,
        IMAGE,
        *_LOKR,
    ),
}
