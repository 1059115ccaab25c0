"""Norms over padded lengths, stale or moved statistics, coarse weights of attention: named."""

import re

import ml_dtypes
import numpy as np
import pytest
from naming import named


def _values(inputs, *names):
    return (inputs[name].values().astype(np.float64) for name in names)


def _layer_norm(variance):
    """variance: x -> [..., 1]"""

    def wrong(op, inputs, params):
        x, w, b = _values(inputs, "x", "weight", "bias")
        return (x - x.mean(-1, keepdims=True)) / np.sqrt(variance(x) + params["eps"]) * w + b

    return wrong


def _padded_squares(op, inputs, params):
    x, w = _values(inputs, "x", "weight")
    return x / np.sqrt((x * x).sum(-1, keepdims=True) / 80 + params["eps"]) * w


def _grouped(moved, early=False):
    """moved: C numbers of the weight or the bias -> as they are read"""

    def wrong(op, inputs, params):
        x, w, b = _values(inputs, "x", "weight", "bias")
        rows = x.reshape(len(x), params["num_groups"], -1)
        rows = (rows - rows.mean(-1, keepdims=True)) / np.sqrt(rows.var(-1, keepdims=True) + params["eps"])
        y = rows.reshape(x.shape)
        y = y / (1 + np.exp(-y)) if early else y
        return y * moved(w)[:, None, None] + moved(b)[:, None, None]

    return wrong


def _attended(masked=lambda s, mask: s + mask, coarse=lambda p: p, tile=1 << 20):
    """masked: scaled scores, mask -> what the softmax is of; coarse: of exponentials of a tile, for its values"""

    def wrong(op, inputs, params):
        q, k, v = _values(inputs, *"qkv")
        s = np.einsum("blhd,bjhd->bhlj", q, k) * q.shape[-1] ** -0.5
        s = masked(s, *_values(inputs, "mask")) if "mask" in inputs else s
        top, total, y = np.full((*s.shape[:-1], 1), -1e30), np.zeros(1), np.zeros(1)
        if "sinks" in inputs:
            top, total = top * 0 + inputs["sinks"].values()[:, None, None], np.ones(1)
        for j in range(0, s.shape[-1], tile):
            own = np.maximum(top, s[..., j : j + tile].max(-1, keepdims=True))
            less, p = np.exp(top - own), np.exp(s[..., j : j + tile] - own)
            total = total * less + p.sum(-1, keepdims=True)
            y, top = y * less + coarse(p) @ v[:, j : j + tile].transpose(0, 2, 1, 3), own
        return (y / total).transpose(0, 2, 1, 3)

    return wrong


_AWKWARD = "layer_norm/f32/awkward-x33x77"
_GROUPS = "group_norm/f32/groups-n3-c33-h4-w5-g11"
_BUGS = {
    "squares over whole 8s": (
        "rms_norm/f32/plain-x2x33x77",
        _padded_squares,
        "the variance is divided by whole (8|16)s",
    ),
    "the variance of the row before": (
        _AWKWARD,
        _layer_norm(lambda x: x.var(-1, keepdims=True)[[0, *range(len(x) - 1)]]),
        "the variance is the row before's",
    ),
    "weight and bias backwards": (
        _GROUPS,
        _grouped(lambda t: t[::-1]),
        "entries of weight and bias are read counted from the end",
    ),
    "an early SiLU": (
        "group_norm_silu/f32/groups-n3-c33-h4-w5-g11",
        _grouped(lambda t: t, early=True),
        "SiLU before the weight and the bias",
    ),
    "scores in bfloat16, with their mask": (
        "attention/f32/masked-b2-l33-j33-h3-d32",
        _attended(lambda s, mask: (s + mask).astype(ml_dtypes.bfloat16).astype(np.float64)),
        "scores rounded to bfloat16 with their mask",
    ),
    "coarse weights beside sinks": (
        "attention/f32/sinks-b2-l20-j33-h3-d32",
        _attended(coarse=lambda p: p.astype(np.float16).astype(np.float64), tile=8),
        "exponentials rounded to float16 in tiles of 8 scores, after they are added up",
    ),
    "weights of seven bits": (
        "attention/f32/cross-b2-l20-j77-h2-d40",
        _attended(coarse=lambda p: np.rint(p * 127) / 127, tile=32),
        "exponentials rounded to 1/127 in tiles of 32 scores, after they are added up",
    ),
}


@pytest.mark.parametrize("bug", _BUGS)
def test_a_wrong_step_is_named(bug):
    case, wrong, says = _BUGS[bug]
    causes = named(case, wrong)
    assert causes and re.search(says, causes[0]), causes


def _statistics_in(dtype, reciprocal=False):
    def wrong(op, inputs, params):
        x, w, b = _values(inputs, "x", "weight", "bias")
        rows = x.reshape(len(x), params["num_groups"], -1)
        mean, variance = rows.mean(-1, keepdims=True), rows.var(-1, keepdims=True)
        root = 1 / np.sqrt(variance + params["eps"])
        if reciprocal:
            root = root.astype(dtype).astype(np.float64)
        else:
            mean, variance = (t.astype(dtype).astype(np.float64) for t in (mean, variance))
            root = 1 / np.sqrt(variance + params["eps"])
        return ((rows - mean) * root).reshape(x.shape) * w[:, None, None] + b[:, None, None]

    return wrong


@pytest.mark.parametrize(
    ("dtype", "reciprocal", "cause"),
    [
        (np.float16, False, "mean and variance stored in float16"),
        (ml_dtypes.bfloat16, True, "1/sqrt(variance + eps) stored in bfloat16"),
    ],
)
@pytest.mark.parametrize("case", ["unet-n2-c320-h5-w4-g32", "groups-n3-c33-h4-w5-g11"])
def test_statistics_in_a_small_type_are_named(case, dtype, reciprocal, cause):
    assert named(f"group_norm/f32/{case}", _statistics_in(dtype, reciprocal))[0] == cause
