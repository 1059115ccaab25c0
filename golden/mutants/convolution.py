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
from refsd.kernels.convolution_geometry import each


def channels_interleaved(w: np.ndarray) -> np.ndarray | None:
    """Filters stored [K, R, S, C] (or [K, T, R, S, C]) taken for [K, C, R, S]."""
    K, C, *taps = w.shape
    return np.moveaxis(w.reshape(K, *taps, C), -1, 1) if np.prod(taps) > 1 and C > 1 else None


def filters_transposed(w: np.ndarray) -> np.ndarray:
    return w.reshape(*w.shape[:-2], w.shape[-1], w.shape[-2]).swapaxes(-1, -2)


def padding_repeated(op, inputs, params):
    """The border's pixels repeated where zeros belong."""
    padding = tuple(params["padding"])
    if not any(padding):
        return None
    sides = [padding[i : i + 2] for i in range(0, len(padding), 2)]
    x = np.pad(inputs["x"].values(), [(0, 0), (0, 0), *sides], "edge")
    return answer(op, {**inputs, "x": stored(x)}, {**params, "padding": (0,) * len(padding)})


def padding_mirrored(op, inputs, params):
    padding = tuple(params["padding"])
    other = tuple(side for i in range(0, len(padding), 2) for side in (padding[i + 1], padding[i]))
    return answer(op, inputs, {**params, "padding": other}) if other != padding else None


def padding_transposed(op, inputs, params):
    *frames, top, bottom, left, right = params["padding"]
    if (top, bottom) == (left, right):
        return None
    return answer(op, inputs, {**params, "padding": (*frames, left, right, top, bottom)})


def dilation_ignored(op, inputs, params):
    """The filter's taps side by side, in the middle of where they should be."""
    taps = inputs["weight"].shape[2:] if "weight" in inputs else params["kernel"]
    spare = [(d - 1) * (n - 1) for d, n in zip(each(params["dilation"], len(taps)), taps, strict=True)]
    padding = [p - (spare[i // 2] + i % 2) // 2 for i, p in enumerate(params["padding"])]
    if not any(spare) or min(padding) < 0:
        return None
    return answer(op, inputs, {**params, "dilation": 1, "padding": tuple(padding)})


def groups_interleaved(op, inputs, params):
    """Every groups-th channel taken for a group, where a group is channels in a row."""
    x, groups = inputs["x"].values(), params["groups"]
    if groups in (1, x.shape[1]):
        return None
    mixed = x.reshape(x.shape[0], -1, groups, *x.shape[2:]).swapaxes(1, 2).reshape(x.shape)
    return answer(op, {**inputs, "x": stored(mixed)}, params)


def groups_in_turn(op, inputs, params):
    """Filter k given to group k mod groups."""
    weight, groups = inputs["weight"].values(), params["groups"]
    K = len(weight)
    if groups in (1, K):
        return None
    order = np.arange(K).reshape(groups, -1).T.reshape(-1)
    changed = {name: stored(inputs[name].values()[order]) for name in ("weight", "bias") if name in inputs}
    return answer(op, {**inputs, **changed}, params)[:, np.argsort(order)]


def patches_channel_last(op, inputs, params):
    y = answer(op, inputs, params)
    N, CRS, PQ = y.shape
    C = inputs["x"].shape[1]
    return y.reshape(N, C, CRS // C, PQ).swapaxes(1, 2).reshape(y.shape)


_BOTH = (
    Mutant("filter transposed", other_input("weight", filters_transposed)),
    Mutant("filter read as channels-last", other_input("weight", channels_interleaved)),
    NO_BIAS,
    Mutant("border repeated", padding_repeated),
    Mutant("padding on the other side", padding_mirrored),
    Mutant("padding of rows and columns swapped", padding_transposed),
    Mutant("dilation ignored", dilation_ignored),
    Mutant("groups of interleaved channels", groups_interleaved),
    Mutant("filters dealt to the groups in turn", groups_in_turn),
    BATCH,
    F16_INPUT,
    F16_WEIGHT,
)
MUTANTS: dict[str, tuple[Mutant, ...]] = {
    "conv2d": (Mutant("filter flipped", other_input("weight", lambda w: w[:, :, ::-1, ::-1])), IMAGE, *_BOTH),
    "conv3d": (
        Mutant("filter flipped in time", other_input("weight", lambda w: w[:, :, ::-1])),
        Mutant("filter flipped in space", other_input("weight", lambda w: w[:, :, :, ::-1, ::-1])),
        Mutant("the first frame alone", other_input("x", lambda x: np.broadcast_to(x[:, :, :1], x.shape))),
        *_BOTH,
    ),
    "im2col": (
        Mutant("columns channel-last", patches_channel_last),
        Mutant("border repeated", padding_repeated),
        Mutant("dilation ignored", dilation_ignored),
        IMAGE,
        F16_INPUT,
    ),
}
