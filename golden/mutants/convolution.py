"""Known bugs of convolutions."""

import numpy as np

from refsd.golden.mutants.mutant import (
    BATCH,
    F16_INPUT,
    F16_WEIGHT,
    IMAGE,
    NO_BIAS,
    Mutant,
    answer,
    other_input,
)
from refsd.golden.tensor import stored


def channels_interleaved(w: np.ndarray) -> np.ndarray | None:
    """Filters stored [K, R, S, C] taken for [K, C, R, S]."""
    K, C, R, S = w.shape
    return w.reshape(K, R, S, C).transpose(0, 3, 1, 2) if R * S > 1 and C > 1 else None


def padding_repeated(op, inputs, params):
    """The border's pixels repeated where zeros belong."""
    top, bottom, left, right = params["padding"]
    if not any(params["padding"]):
        return None
    x = np.pad(inputs["x"].values(), ((0, 0), (0, 0), (top, bottom), (left, right)), "edge")
    return answer(op, {**inputs, "x": stored(x)}, {**params, "padding": (0, 0, 0, 0)})


def padding_mirrored(op, inputs, params):
    top, bottom, left, right = params["padding"]
    if top == bottom and left == right:
        return None
    return answer(op, inputs, {**params, "padding": (bottom, top, right, left)})


def padding_transposed(op, inputs, params):
    top, bottom, left, right = params["padding"]
    if (top, bottom) == (left, right):
        return None
    return answer(op, inputs, {**params, "padding": (left, right, top, bottom)})


def patches_channel_last(op, inputs, params):
    y = answer(op, inputs, params)
    N, CRS, PQ = y.shape
    C = inputs["x"].shape[1]
    return y.reshape(N, C, CRS // C, PQ).swapaxes(1, 2).reshape(y.shape)


MUTANTS: dict[str, tuple[Mutant, ...]] = {
    "conv2d": (
        Mutant("filter flipped", other_input("weight", lambda w: w[:, :, ::-1, ::-1])),
        Mutant(
            "filter transposed",
            other_input("weight", lambda w: w.reshape(*w.shape[:2], w.shape[3], w.shape[2]).swapaxes(2, 3)),
        ),
        Mutant("filter read as channels-last", other_input("weight", channels_interleaved)),
        NO_BIAS,
        Mutant("border repeated", padding_repeated),
        Mutant("padding on the other side", padding_mirrored),
        Mutant("padding of rows and columns swapped", padding_transposed),
        IMAGE,
        BATCH,
        F16_INPUT,
        F16_WEIGHT,
    ),
    "im2col": (
        Mutant("columns channel-last", patches_channel_last),
        Mutant("border repeated", padding_repeated),
        IMAGE,
        F16_INPUT,
    ),
}
