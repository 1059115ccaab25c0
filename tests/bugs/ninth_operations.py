"""A ninth fresh set, of operations: from public trackers, drawn before a look at the judge."""

import math
from dataclasses import replace

import numpy as np
from held_out import HeldOut
from injection import Injection, other_result, wrong_method, wrong_operation

from refsd.kernels.interpolate import resize_bilinear_corners
from refsd.kernels.softmax import softmax

# --- pictures, norms and activations -----------------------------------------------------------------------------


def _grid_of_corners(case, inputs, y):
    """The first place is found from a rounded number of pixels: factors with a fraction take the corners' grid."""
    x, to = inputs["x"].values(), (case.params["height"], case.params["width"])
    fraction = any(out % size for out, size in zip(to, x.shape[2:], strict=True))
    if not fraction or case.params.get("align_corners") or case.params.get("antialias"):
        return y
    return resize_bilinear_corners(np.ascontiguousarray(x), *to)


def _eps_of_the_mean(a, right, x, eps=1e-12):
    """A norm by the mean of squares stands for the length: eps is added to the mean."""
    x = np.asarray(x, np.float64)
    return x / np.sqrt(np.square(x).mean(-1, keepdims=True) + eps) / math.sqrt(x.shape[-1])


def _sums_for_means(a, right, x, weight, eps=1e-6):
    """Two devices give their sums of squares, which are taken for means and averaged."""
    x = np.asarray(x, np.float64)
    y = x / np.sqrt(np.square(x).sum(-1, keepdims=True) / 2 + eps)
    return y if weight is None else y * np.asarray(weight)


_PLACES = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0])
_EVEN = np.array([0.5 * p * math.erf(p / math.sqrt(2)) for p in _PLACES])  # GELU is x / 2 and an even function


def _six_lines(case, inputs, y):
    """The gate's GELU is x / 2 and six lines of |x|; from 3 on the sixth is |x| / 2."""
    value, gate = np.split(inputs["x"].values().astype(np.float64), 2, axis=-1)
    size = np.abs(gate)
    even = np.where(size < 3, np.interp(size, _PLACES, _EVEN), size / 2)
    return (value * (gate / 2 + even)).astype(y.dtype)


# --- attention ---------------------------------------------------------------------------------------------------


def _rows_at(whole, stride, count):
    """[B, J, H, D]: the first rows of each item, `stride` numbers apart; behind the end lie zeros."""
    flat, row = whole.reshape(-1), whole.shape[2] * whole.shape[3]
    first = np.arange(len(whole))[:, None] * whole.shape[1] * row + np.arange(count) * stride
    at = first[..., None] + np.arange(row)
    return np.where(at < flat.size, flat[np.minimum(at, flat.size - 1)], 0).reshape(
        len(whole), count, *whole.shape[2:]
    )


def _each_other_s_strides(case, inputs, y):
    """The first tile of 64 keys is read at the distance of values' rows, and values at that of keys' rows."""
    q, k, v = (inputs[name].values().astype(np.float64) for name in "qkv")
    if k.shape[2:] == v.shape[2:] or "mask" in inputs or "sinks" in inputs:
        return y
    count, groups = min(k.shape[1], 64), q.shape[2] // k.shape[2]
    own, other = k.shape[2] * k.shape[3], v.shape[2] * v.shape[3]
    k[:, :count], v[:, :count] = _rows_at(k, other, count), _rows_at(v, own, count)
    k, v = (np.repeat(t, groups, axis=2) for t in (k, v))
    scores = np.einsum("blhd,bjhd->bhlj", q, k) * case.params.get("scale", q.shape[-1] ** -0.5)
    shares = softmax(scores.reshape(-1, scores.shape[-1])).reshape(scores.shape)
    return np.einsum("bhlj,bjhe->blhe", shares, v).astype(y.dtype)


# --- quantised types ---------------------------------------------------------------------------------------------


def _parts_of_half_a_tile(a, right, x, weight, bias=None, *rest):
    """Sums are split in parts of 16 numbers, but tiles are 32 wide: each reads the next part's, too."""
    y = np.asarray(right(x, weight, bias, *rest), np.float64)
    rows, w = np.asarray(x, np.float64).reshape(-1, x.shape[-1]), np.asarray(weight, np.float64)
    twice = rows[:, 16:] @ w[:, 16:].T
    behind = np.pad(rows[1:, :16], ((0, 1), (0, 0))) @ np.pad(w[1:, :16], ((0, 1), (0, 0))).T
    return y + (twice + behind).reshape(y.shape)


def _one_scale_for_all_rows(a, right, x, weight, scale, bias, how, static=None, zero=None):
    return right(x, weight, scale, bias, replace(how, scale="tensor") if how.scale == "row" else how, static, zero)


_TABLE = {
    "c-res-01": (
        "op",
        "ml-explore/mlx#3908",
        other_result("resize_bilinear", "corner|half.?pixel|grid", _grid_of_corners),
    ),
    "c-norm-01": (
        "op",
        "ml-explore/mlx-lm#1624",
        wrong_method("l2_norm", "l2_norm", "eps", l2_norm=_eps_of_the_mean),
    ),
    "c-norm-02": (
        "op",
        "tenstorrent/tt-mlir#8798",
        wrong_method("rms_norm", "rms_norm", "mean|sum|divided|sqrt|number of", rms_norm=_sums_for_means),
    ),
    "c-act-01": (
        "op",
        "tenstorrent/tt-metal#54903",
        other_result("geglu", "gelu|line|table|approximat|tail|saturat", _six_lines),
    ),
    "c-att-01": (
        "op",
        "flagos-ai/FlagAttention#46",
        other_result("attention", "stride|rows? at|distance|address|layout|memory", _each_other_s_strides),
    ),
    "c-q-01": (
        "op",
        "ml-explore/mlx#3854",
        Injection(
            ("linear/nvfp4/*",),
            wrong_operation(linear=_parts_of_half_a_tile),
            "linear",
            "twice|two times|2 times|part|tile|next",
        ),
    ),
    "c-q-02": (
        "op",
        "unslothai/unsloth#6772",
        wrong_method(
            "linear_fp8", "linear_fp8", "tensor|one scale|all rows|whole", linear_quantized=_one_scale_for_all_rows
        ),
    ),
}
NINTH_OPERATIONS = {id: HeldOut(*row) for id, row in _TABLE.items()}
