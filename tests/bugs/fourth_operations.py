"""A fourth fresh set, of operations and models: from public trackers, drawn after causes by family were added."""

import numpy as np
from held_out import HeldOut
from injected_models import _model, _patch
from injection import Bug, Injection, wrong_method, wrong_operation

from refsd.models import flux

# --- products, convolution, norms --------------------------------------------------------------------------------


def _whole_tiles_of_columns(a, right, x, weight, *rest):
    """The grid has floor(N / 64) groups of columns, not ceil: the columns behind are never written."""
    y = np.array(right(x, weight, *rest))
    y[..., y.shape[-1] // 64 * 64 :] = 0
    return y


def _first_group_of_inputs(a, right, x, weight, bias=None, stride=1, padding=(0, 0, 0, 0), dilation=1, groups=1):
    """Every group of outputs reads the first group of channels."""
    x = np.asarray(x)
    x = np.tile(x[:, : x.shape[1] // groups], (1, groups, 1, 1))
    return right(x, weight, bias, stride, padding, dilation, groups)


def _filter_in_another_layout(a, right, x, weight, *rest, **named):
    """The filter's memory is [R, S, C, K] and is read as [K, C, R, S]."""
    weight = np.asarray(weight)
    return right(x, np.ascontiguousarray(weight.transpose(2, 3, 1, 0)).reshape(weight.shape), *rest, **named)


def _dense(a, right, x, *rest, **named):
    """x is a transposed view; its memory is read as if it were dense."""
    x = np.asarray(x)
    return right(np.ascontiguousarray(np.swapaxes(x, -1, -2)).reshape(x.shape), *rest, **named)


def _bfloat16_bits_as_float16(a, right, x, weight, bias=None, weight_type="f32"):
    """bfloat16 is mapped to the float16 kernel: the same bits, read as the other type."""
    if weight_type == "bf16":
        bits = np.asarray(weight, np.float32).view(np.uint32) >> 16
        weight = bits.astype(np.uint16).view(np.float16).astype(np.float32)
    return right(x, weight, bias, weight_type)


# --- attention, positions, resizing ------------------------------------------------------------------------------


def _rows_divided_by_the_groups(a, right, q, k, v, scale=None, mask=None, diagonal=None, *rest):
    """Rows are taken for packed groups of two query heads: row i sees the keys up to i // 2."""
    if diagonal is None:
        return right(q, k, v, scale, mask, diagonal, *rest)
    L, J = q.shape[1], k.shape[1]
    hidden = np.where(np.arange(J) > np.arange(L)[:, None] // 2 + diagonal, -np.inf, 0.0)[None, None]
    return right(q, k, v, scale, hidden if mask is None else mask + hidden, None, *rest)


def _compressed_positions(a, right, ids, axes_dim, theta):
    """A scaling by parts is taken for a linear one: every position is divided by 8."""
    return right(np.asarray(ids, np.float64) / 8, axes_dim, theta)


def _nearest_by_corners(a, right, x, factor=2):
    """Nearest with aligned corners: pixel p is of round(p (n - 1) / (factor n - 1))."""
    x = np.asarray(x)
    at = [np.rint(np.arange(factor * n) * (n - 1) / (factor * n - 1)).astype(int) for n in x.shape[2:]]
    return x[:, :, at[0]][:, :, :, at[1]]


def _no_half_pixel(case, inputs, y):
    """Bilinear from p n / N, not from (p + 1/2) n / N - 1/2."""
    if case.params.get("align_corners") or case.params.get("antialias"):
        return y
    x = np.asarray(inputs["x"].values(), np.float64)
    for axis, n in ((2, y.shape[2]), (3, y.shape[3])):
        source = np.arange(n) * x.shape[axis] / n
        low = np.floor(source).astype(int)
        high, t = np.minimum(low + 1, x.shape[axis] - 1), source - low
        t = t[:, None] if axis == 2 else t
        x = np.take(x, low, axis) * (1 - t) + np.take(x, high, axis) * t
    return x.astype(y.dtype)


# --- models ------------------------------------------------------------------------------------------------------


def _eight_heads(a, right, q, k, v, *rest, **named):
    """Stable Diffusion 2 with 8 heads, as version 1 has, where a head has 64 channels."""
    B, L, H, D = q.shape
    if (H * D) % 8 or H == 8:
        return right(q, k, v, *rest, **named)
    heads = [np.ascontiguousarray(t).reshape(*t.shape[:2], 8, -1) for t in (q, k, v)]
    return np.asarray(right(*heads, *rest, **named)).reshape(B, L, H, D)


def _sine_first(a, right, t, dim, max_period=10000.0, freq_shift=0.0, scale=1.0, sin_first=False):
    """The halves of the timestep's embedding are exchanged once too often."""
    return right(t, dim, max_period, freq_shift, scale, not sin_first)


_GRID = flux.grid_ids


def _reference_at_the_picture(H, W, index=0):
    """The picture to edit stands at the positions of the picture that is drawn."""
    return _GRID(H, W, 0)


def _of_results(op: str, cause: str, change) -> Injection:
    return Injection(
        (f"{op}/*",), Bug(answer=lambda case, inputs, y: {"y": change(case, inputs, y["y"])}), op, cause
    )


_TABLE: dict[str, tuple[str, str, Injection]] = {
    "x-lin-01": (
        "op",
        "ml-explore/mlx#4250",
        wrong_method(
            "linear",
            "linear",
            "zeros|nothing is|not written|left out",
            "linear/f32/*",
            linear=_whole_tiles_of_columns,
        ),
    ),
    "x-lin-02": (
        "op",
        "huggingface/candle#3409, one of its causes",
        wrong_method(
            "linear",
            "linear",
            "bits|exponent|as (a )?float16|bias of",
            "linear/bf16/*",
            linear=_bfloat16_bits_as_float16,
        ),
    ),
    "x-conv-01": (
        "op",
        "pytorch/pytorch#19912, cause of the symptom assumed",
        wrong_method(
            "conv2d", "conv2d", "group|first (half|third|slice|tile|block)", conv2d=_first_group_of_inputs
        ),
    ),
    "x-conv-02": (
        "op",
        "modular/modular#6248, cause taken from the title",
        wrong_method("conv2d", "conv2d", "layout|order|memory|stored|axes", conv2d=_filter_in_another_layout),
    ),
    "x-norm-01": (
        "op",
        "microsoft/DirectML#588",
        wrong_method("layer_norm", "layer_norm", "memory|order|exchanged|transposed|axes", layer_norm=_dense),
    ),
    "x-att-01": (
        "op",
        "Dao-AILab/flash-attention#2528",
        wrong_method(
            "attention", "attention", r"causal|diagonal|row|half|\b2\b", attention=_rows_divided_by_the_groups
        ),
    ),
    "x-rope-01": (
        "op",
        "lablup/mlxcel#1688",
        wrong_method(
            "rope", "rope", r"0\.125|1/8|\b8\b|positions?.*(divided|scaled)|ids", rope_angles=_compressed_positions
        ),
    ),
    "x-up-01": (
        "op",
        "tensorflow/tensorflow#10989",
        wrong_method(
            "upsample_nearest",
            "upsample_nearest",
            "corner|align|rounded|nearest",
            upsample_nearest=_nearest_by_corners,
        ),
    ),
    "x-up-02": (
        "op",
        "pytorch/pytorch#10604",
        _of_results("resize_bilinear", "half|centre|corner|align|shift", _no_half_pixel),
    ),
    "x-mod-01": (
        "model",
        "Stability-AI/stablediffusion#36",
        _model(wrong_operation(attention=_eight_heads), "attn|attention", "heads?", "sd21/unet/*"),
    ),
    "x-mod-02": (
        "model",
        "flashinfer-ai/flashinfer#3819",
        _model(
            wrong_operation(timestep_embedding=_sine_first),
            "time",
            "sine|sin|cos|halves|order",
            "wan/wan/frames",
        ),
    ),
    "x-mod-03": (
        "model",
        "sgl-project/sglang#19454, its second cause, in one process",
        _model(
            Bug(patched=_patch(flux, "grid_ids", _reference_at_the_picture)),
            "rope|angle|attn|block|qkv",
            "reference|position|index",
            "flux-dev/flux/reference",
        ),
    ),
}
FOURTH_OPERATIONS = {id: HeldOut(*row) for id, row in _TABLE.items()}
