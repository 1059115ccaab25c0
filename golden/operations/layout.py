"""What moves numbers, and what meets them in another shape."""

import numpy as np

from refsd.golden.errors import BadInput
from refsd.golden.operations.operation import IMAGE, REQUIRED, Operation, entry, values
from refsd.kernels import pad, patchify, pixel_shuffle

_BORDERS = {
    "zero": pad.pad_zero,
    "replicate": pad.pad_replicate,
    "reflect": pad.pad_reflect,
    "circular": pad.pad_circular,
}


def _pixel_unshuffle(a, inputs, params):
    return pixel_shuffle.pixel_unshuffle(values(a, inputs["x"]), params["factor"])


def _pixel_shuffle(a, inputs, params):
    return pixel_shuffle.pixel_shuffle(values(a, inputs["x"]), params["factor"])


def _patchify(a, inputs, params):
    cut = patchify.patchify_channels_last if params["channels_last"] else patchify.patchify
    return cut(values(a, inputs["x"]), params["patch"])


def _unpatchify(a, inputs, params):
    join = patchify.unpatchify_channels_last if params["channels_last"] else patchify.unpatchify
    return join(values(a, inputs["x"]), params["patch"], params["height"])


def _pad(a, inputs, params):
    if params["mode"] not in _BORDERS:
        raise BadInput(f"pad: mode {params['mode']!r}, expected one of {', '.join(_BORDERS)}")
    return _BORDERS[params["mode"]](values(a, inputs["x"]), tuple(params["padding"]))


def _roll(a, inputs, params):
    return pad.roll(values(a, inputs["x"]), params["down"], params["right"])


def _concat(a, inputs, params):
    return np.concatenate([values(a, inputs["a"]), values(a, inputs["b"])], axis=params["axis"])


def _add(a, inputs, params):
    return a.apply(np.add, values(a, inputs["a"]), values(a, inputs["b"]))


def _mul(a, inputs, params):
    return a.apply(np.multiply, values(a, inputs["a"]), values(a, inputs["b"]))


_PAIR = {"a": "[...]", "b": "broadcastable to a"}

OPERATIONS: dict[str, Operation] = {
    "pixel_unshuffle": entry(
        _pixel_unshuffle,
        "Each factor x factor block of pixels becomes channels: c, then row, then column in the block.",
        {"x": IMAGE},
        "[N, C*factor^2, H/factor, W/factor]",
        channel=1,
        factor=2,
    ),
    "pixel_shuffle": entry(
        _pixel_shuffle,
        "Undo pixel_unshuffle.",
        {"x": IMAGE},
        "[N, C/factor^2, H*factor, W*factor]",
        channel=1,
        factor=2,
    ),
    "patchify": entry(
        _patchify,
        "Cut a picture into tokens of patch x patch pixels, their channel outermost or innermost.",
        {"x": IMAGE},
        "[N, H/patch * W/patch, C*patch^2]",
        patch=2,
        channels_last=False,
    ),
    "unpatchify": entry(
        _unpatchify,
        "Undo patchify; height is counted in tokens.",
        {"x": "[N, L, C*patch^2]"},
        "[N, C, height*patch, L/height*patch]",
        channel=1,
        patch=2,
        height=REQUIRED,
        channels_last=False,
    ),
    "pad": entry(
        _pad,
        "A border of (top, bottom, left, right) pixels; mode is zero, replicate, reflect or circular.",
        {"x": IMAGE},
        "[N, C, top + H + bottom, left + W + right]",
        channel=1,
        padding=REQUIRED,
        mode="zero",
    ),
    "roll": entry(
        _roll,
        "Move a picture; what leaves enters on the other side.",
        {"x": IMAGE},
        IMAGE,
        channel=1,
        down=0,
        right=0,
    ),
    "concat": entry(
        _concat,
        "b behind a along an axis.",
        {"a": "[...]", "b": "a's shape but for the axis"},
        "[...]",
        axis=1,
    ),
    "add": entry(_add, "a + b", _PAIR, "[...]", channel=1),
    "mul": entry(_mul, "a * b", _PAIR, "[...]", channel=1),
}
