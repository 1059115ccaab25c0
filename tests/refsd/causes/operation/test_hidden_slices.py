"""Slices hidden in sums and results, scales that grow or are rounded early, orders of a padding: named."""

import re

import ml_dtypes
import numpy as np
import pytest
from naming import named

from refsd.golden.mutations import answer
from refsd.kernels.quant.activation_codes import GRIDS, to_grid
from refsd.numerics.tensor import stored


def _values(inputs, *names):
    return (inputs[name].values().astype(np.float64) for name in names)


def _tiles_of_16_channels(op, inputs, params):
    """A group's channels beyond its first tile of 16 are hidden, and do not count."""
    x, w, b = _values(inputs, "x", "weight", "bias")
    each = x.shape[1] // params["num_groups"]
    channel = np.arange(x.shape[1])
    seen = (channel // 16 == channel // each * each // 16).reshape(params["num_groups"], each, 1)
    rows = x.reshape(len(x), params["num_groups"], each, -1)
    count = seen.sum(axis=(1, 2), keepdims=True) * rows.shape[-1]
    mean = (rows * seen).sum(axis=(2, 3), keepdims=True) / count
    variance = (np.square(rows - mean) * seen).sum(axis=(2, 3), keepdims=True) / count
    y = ((rows - mean) / np.sqrt(variance + params["eps"]) * seen).reshape(x.shape)
    return y * w[:, None, None] + b[:, None, None]


def _whole_tiles_of_64(op, inputs, params):
    """What is behind a row's last whole tile is neither added up nor computed."""
    x, w = _values(inputs, "x", "weight")
    seen = np.arange(x.shape[-1]) < x.shape[-1] // 64 * 64
    square = (np.square(x) * seen).mean(axis=-1, keepdims=True)
    return x / np.sqrt(square + params["eps"]) * seen * w


def _scaled_again(op, inputs, params):
    """Each 32 keys the scores are multiplied by the scale once more."""
    q, k, v = _values(inputs, *"qkv")
    scale = q.shape[-1] ** -0.5
    s = np.einsum("blhd,bjhd->bhlj", q, k) * scale ** (1 + np.arange(k.shape[1]) // 32)
    p = np.exp(s - s.max(axis=-1, keepdims=True))
    return np.einsum("bhlj,bjhd->blhd", p / p.sum(axis=-1, keepdims=True), v)


def _over_the_heads(op, inputs, params):
    q, k, v = _values(inputs, *"qkv")
    s = np.einsum("blhd,blgd->blhg", q, k) * q.shape[-1] ** -0.5
    p = np.exp(s - s.max(axis=-1, keepdims=True))
    return np.einsum("blhg,blgd->blhd", p / p.sum(axis=-1, keepdims=True), v)


def _frames_for_rows(op, inputs, params):
    front, back, top, bottom, left, right = params["padding"]
    return answer(op, inputs, {**params, "padding": (top, bottom, front, back, left, right)})


def _just_below_a_tie(op, inputs, params):
    (x,) = _values(inputs, "x")
    for axis, n in ((2, params["height"]), (3, params["width"])):
        size = x.shape[axis]
        x = x.take(np.floor((np.arange(n) + 0.5) * size / n - 1e-6).astype(int), axis)
    return x


def _scale_in_float16(op, inputs, params):
    x, weight, scale, bias = _values(inputs, "x", "weight", "weight_scale", "bias")
    own = (np.abs(x).max(axis=-1, keepdims=True) / 127).astype(np.float16).astype(np.float64)
    return np.clip(np.rint(x / own), -127, 127) @ weight.T * own * scale + bias


def _next_squares(op, inputs, params):
    """The codes of 128 columns are multiplied by both factors' scales of the next."""
    x, weight, scales, bias = _values(inputs, "x", "weight", "block_scale", "bias")
    starts = range(0, x.shape[-1], 128)
    own = [np.abs(x[..., i : i + 128]).max(axis=-1, keepdims=True) / 448 for i in starts]
    y, rows = 0.0, np.arange(len(weight)) // 128
    for n, i in enumerate(starts):
        few = (x[..., i : i + 128] / own[n]).astype(np.float32).astype(ml_dtypes.float8_e4m3fn).astype(np.float64)
        then = (n + 1) % len(own)
        y = y + few @ weight[:, i : i + 128].T * own[then] * scales[rows, then]
    return y + bias


def _one_scale_in_e5m2(op, inputs, params):
    both = inputs["block_scale"].values().astype(np.float32) * inputs["weight_scale"].values()
    changed = {
        "block_scale": stored(to_grid(both, GRIDS["f8_e5m2"])),
        "weight_scale": stored(np.ones(1, np.float32)),
    }
    return answer(op, {**inputs, **changed}, params)


_BUGS = {
    "tiles of 16 channels": (
        "group_norm/f32/unet-n2-c320-h5-w4-g32",
        _tiles_of_16_channels,
        "indices 16 to 19, 32 to 39, 48 to 49 and 64 to 69 along axis 1 are hidden.*of the others",
    ),
    "whole tiles of 64": (
        "rms_norm/f32/plain-x2x33x77",
        _whole_tiles_of_64,
        "indices 64 to 76 along axis -1 are hidden.*of all",
    ),
    "a scale once more": (
        "attention/f32/cross-b2-l20-j77-h2-d40",
        _scaled_again,
        r"scores are multiplied by 1 / sqrt\(D\) once more at each 32 keys",
    ),
    "heads for tokens": ("attention/f32/self-b2-l35-j35-h2-d40", _over_the_heads, "heads attend to each other"),
    "frames for rows": (
        "conv3d/f32/causal-n1-c20-k7-d4-h6-w7",
        _frames_for_rows,
        r"padding is \(1, 1, 2, 0, 1, 1\)",
    ),
    "just below a tie": (
        "resize_nearest_exact/f32/down-n2-c3-h16-w20-to6x8",
        _just_below_a_tie,
        "at a tie the lower pixel",
    ),
    "a scale in float16": (
        "linear_int8/tokens-x77x320-o33",
        _scale_in_float16,
        "scale rounded to float16, before they are divided",
    ),
    "scales of the next square": (
        "linear_fp8_blocks/tokens-x9x384-o272",
        _next_squares,
        "both factors' scales of the next block",
    ),
    "one scale in E5M2": ("linear_nvfp4/tokens-x77x320-o32", _one_scale_in_e5m2, "tensor's, rounded to E5M2"),
}


@pytest.mark.parametrize("bug", _BUGS)
def test_another_bug_of_a_class_is_named(bug):
    case, wrong, says = _BUGS[bug]
    causes = named(case, wrong)
    assert causes and re.search(says, causes[0]), causes
