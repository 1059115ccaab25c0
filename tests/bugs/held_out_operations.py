"""Bugs of operations that the judge's known bugs were not written from, each with its source.

What the first run of tests/bugs/inject.py said of them is the honest figure; CHANGELOG has it.
"""

import numpy as np
from held_out_sources import sourced
from injected_operations import _gelu
from injection import Injection, other_result, wrong_method

# --- attention ---------------------------------------------------------------------------------------------------


def _every_head(a, right, q, k, v, scale=None, *rest, **named):
    """DL4Proteins-notebooks issue 12; FlexFlow issue 467: 1 / sqrt(all heads' channels)."""
    scale = (q.shape[2] * q.shape[3]) ** -0.5 if scale is None else scale
    return right(q, k, v, scale, *rest, **named)


def _over_queries(a, right, q, k, v, scale=None, mask=None, diagonal=None, sinks=None):
    """annotated_deep_learning_paper_implementations issue 146: softmax along the queries."""
    if mask is not None or diagonal is not None or sinks is not None:
        return right(q, k, v, scale, mask, diagonal, sinks)
    ratio = q.shape[2] // k.shape[2]
    q, k, v = (np.asarray(t, np.float64) for t in (q, np.repeat(k, ratio, 2), np.repeat(v, ratio, 2)))
    s = np.einsum("blhd,bjhd->bhlj", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    p = np.exp(s - s.max(2, keepdims=True))
    return np.einsum("bhlj,bjhe->blhe", p / p.sum(2, keepdims=True), v)


def _maximum_of_half(a, right, x, scale=1.0, mask=None, sinks=None):
    """ggml 829c67c9: the running maximum begins at -65504 / 2; scores below have no weight."""
    s = np.asarray(x, np.float64) * scale + (0 if mask is None else mask)
    y = np.array(right(x, scale, mask, sinks))
    y[(s.max(-1) < -32752) & np.isfinite(s.max(-1))] = np.nan
    return y


def _key_head_by_remainder(a, right, q, k, v, *rest, **named):
    """repeat for repeat_interleave: the head h reads the keys' head h % G."""
    ratio = q.shape[2] // k.shape[2]
    return right(q, *(np.ascontiguousarray(np.tile(t, (1, 1, ratio, 1))) for t in (k, v)), *rest, **named)


def _zero_keys(a, right, q, k, v, scale=None, mask=None, diagonal=None, sinks=None):
    """stable-diffusion.cpp 1453: keys and values filled up with zeros to a multiple of 256, not hidden."""
    more = -k.shape[1] % 256
    if mask is not None or diagonal is not None:
        return right(q, k, v, scale, mask, diagonal, sinks)
    k, v = (np.pad(t, ((0, 0), (0, more), (0, 0), (0, 0))) for t in (k, v))
    return right(q, k, v, scale, mask, diagonal, sinks)


def _scores_in_half(a, right, q, k, v, scale=None, mask=None, diagonal=None, sinks=None):
    """ggml ec47d8e5: products of queries and keys summed in float16."""
    if diagonal is not None or sinks is not None:
        return right(q, k, v, scale, mask, diagonal, sinks)
    ratio = q.shape[2] // k.shape[2]
    q, k = (np.asarray(t, np.float16).transpose(0, 2, 1, 3) for t in (q, np.repeat(k, ratio, 2)))
    s = np.zeros((*q.shape[:3], k.shape[2]), np.float16)
    for d in range(q.shape[3]):
        s = (s + (q[..., :, None, d] * k[..., None, :, d]).astype(np.float16)).astype(np.float16)
    s = s.astype(np.float64) * (q.shape[-1] ** -0.5 if scale is None else scale) + (0 if mask is None else mask)
    top = np.where(np.isneginf(s.max(-1, keepdims=True)), 0, s.max(-1, keepdims=True))
    p = np.exp(s - top)
    p /= np.maximum(p.sum(-1, keepdims=True), 1e-300)
    return np.einsum("bhlj,bjhe->blhe", p, np.repeat(v, ratio, 2).astype(np.float64))


# --- convolutions and pictures -----------------------------------------------------------------------------------


def _one_dilation(a, right, x, weight, bias, stride=1, padding=(0, 0, 0, 0), dilation=1, groups=1):
    """tt-metal 19542: the dilation down is used across; the output keeps its shape."""
    down, across = np.broadcast_to(dilation, 2)
    more = (down - across) * (weight.shape[3] - 1)
    padding = (*padding[:3], max(0, padding[3] + more))
    return right(x, weight, bias, stride, padding, int(down), groups)


def _low_padding_twice(a, right, x, weight, bias, stride=1, padding=(0, 0, 0, 0), *rest):
    """mlx 2070: the padding before is used after, too; the output keeps its shape."""
    y = right(x, weight, bias, stride, padding, *rest)
    wrong = right(x, weight, bias, stride, (padding[0], padding[0], padding[2], padding[2]), *rest)
    out = np.zeros_like(y)
    P, Q = (min(a, b) for a, b in zip(y.shape[2:], wrong.shape[2:], strict=True))
    out[:, :, :P, :Q] = wrong[:, :, :P, :Q]
    return out


def _neighbouring_rows(a, right, x, weight, bias, stride=1, padding=(0, 0, 0, 0), *rest):
    """modular 6712: left and right of a row the rows before and after it are read."""
    top, bottom, left, tail = padding
    if not left and not tail:
        return right(x, weight, bias, stride, padding, *rest)
    N, C, H, W = x.shape
    flat = np.pad(np.asarray(x).reshape(N, C, -1), ((0, 0), (0, 0), (left, tail)))
    wide = np.stack([flat[..., W * r : W * r + W + left + tail] for r in range(H)], axis=2)
    return right(np.ascontiguousarray(wide), weight, bias, stride, (top, bottom, 0, 0), *rest)


def _tail_channels(a, right, x, weight, bias, stride=1, padding=(0, 0, 0, 0), dilation=1, groups=1):
    """ggml 5afc45fe: of a depthwise convolution the last C % 8 channels are not written."""
    y = np.array(right(x, weight, bias, stride, padding, dilation, groups))
    if groups == x.shape[1] > 8 and groups % 8:
        y[:, groups // 8 * 8 :] = 0
    return y


def _both_ends(case, inputs, y):
    """stable-diffusion.cpp 1133: as many pixels before as behind, in an output of the right size."""
    top, bottom, left, right = case.params["padding"]
    shifts = (top + bottom) // 2 - top, (left + right) // 2 - left
    if case.params["mode"] != "zero":
        return y
    return np.roll(y, shifts, axis=(2, 3)) if shifts != (0, 0) else np.roll(y, (-1, 1), axis=(2, 3))


def _rounded_places(case, inputs, y):
    """mlx 2186: the nearest pixel by rounding (i + 0.5) s - 0.5, in place of cutting i s off."""
    x = inputs["x"].values()
    for axis in (2, 3):
        n, m = x.shape[axis], y.shape[axis]
        at = np.round((np.arange(m) + 0.5) * n / m - 0.5).astype(int)
        x = np.take(x, np.clip(at, 0, n - 1), axis=axis)
    return x.astype(y.dtype)


def _corners(case, inputs, y):
    """Corners aligned where the centres of pixels should be: (n - 1) / (m - 1)."""
    if case.params.get("align_corners") or case.params.get("antialias") or "smooth" in case.name:
        return y
    x = np.asarray(inputs["x"].values(), np.float64)
    for axis in (2, 3):
        n, m = x.shape[axis], y.shape[axis]
        at = np.arange(m) * (n - 1) / (m - 1)
        low = np.minimum(at.astype(int), n - 2)
        part = (at - low).reshape([-1 if i == axis else 1 for i in range(4)])
        x = np.take(x, low, axis) * (1 - part) + np.take(x, low + 1, axis) * part
    return x.astype(y.dtype)


def _depth_first(case, inputs, y):
    """DepthToSpace with mode DCR for PixelShuffle: channels lie as r, r, C."""
    x, r = inputs["x"].values(), case.params.get("factor", 2)
    N, C, H, W = x.shape
    blocks = x.reshape(N, r, r, C // r**2, H, W)
    return np.ascontiguousarray(np.einsum("nabchw->nchawb", blocks)).reshape(y.shape)


def _other_order(case, inputs, y):
    """Tokens of p p C in place of C p p."""
    x, p = inputs["x"].values(), case.params.get("patch", 2)
    N, C, H, W = x.shape
    if case.params.get("channels_last") or x.size > 10**6:
        return y
    return np.einsum("nchpwq->nhwpqc", x.reshape(N, C, H // p, p, W // p, p)).reshape(y.shape)


def _by_pixels_seen(case, inputs, y):
    """The mean of the pixels inside, where padding counts (and the other way round)."""
    how = case.params
    window, stride = np.broadcast_to(how["kernel_size"], 2), np.broadcast_to(how["stride"], 2)
    pad = np.broadcast_to(how.get("padding", 0), 2)
    H, W = inputs["x"].shape[2:]
    inside = np.pad(np.ones((H, W)), [(p, p) for p in pad])
    seen = np.array(
        [
            [inside[r * stride[0] :, c * stride[1] :][: window[0], : window[1]].sum() for c in range(y.shape[3])]
            for r in range(y.shape[2])
        ]
    )
    factor = seen / np.prod(window)
    counted = how.get("count_include_pad", True)
    return (y / factor if counted else y * factor).astype(y.dtype)


# --- positions and times -----------------------------------------------------------------------------------------


def _angle_of_the_head(a, right, x, angle):
    """open_lm issue 4: head h of every token is turned as token h."""
    H = x.shape[2]
    y = np.asarray(x).swapaxes(1, 2)
    if angle.shape[1] < H:
        return right(x, angle)
    return np.asarray(right(np.ascontiguousarray(y), np.ascontiguousarray(angle[:, :H]))).swapaxes(1, 2)


def _frequencies_of_pairs(a, right, x, angle):
    """how-to-train-your-gpt issue 6: angles repeated in pairs, channels turned by halves."""
    x = np.asarray(x, np.float64)
    wide = np.repeat(np.asarray(angle), 2, axis=-1)[:, :, None]
    one, two = np.split(x, 2, axis=-1)
    return x * np.cos(wide) + np.concatenate([-two, one], axis=-1) * np.sin(wide)


def _first_half_again(a, right, x, angle):
    """ncnn 6833: the second half of the channels is turned by the first half's angles."""
    angle = np.array(angle)
    half = angle.shape[-1] // 2
    angle[..., half : 2 * half] = angle[..., :half]
    return right(x, angle)


def _halves_swapped(a, right, t, dim, *rest, **named):
    """flashinfer 3819."""
    y = np.array(right(t, dim, *rest, **named))
    half = dim // 2
    y[:, :half], y[:, half : 2 * half] = y[:, half : 2 * half].copy(), y[:, :half].copy()
    return y


def _tanh_of_large(a, right, x, approximate="none"):
    """ggml-metal: a fast tanh is no number for large arguments."""
    y = np.array(right(x, approximate))
    z = np.asarray(x, np.float64)
    y[np.abs(0.7978845608028654 * (z + 0.044715 * z**3)) > 44] = np.nan
    return y


def _swapped_halves(a, right, x, second_gates=False):
    return right(x, not second_gates)


_TABLE: dict[str, Injection] = {
    "u-act-01": wrong_method("swiglu", "swiglu", "half|halves|gate", swiglu=_swapped_halves),
    "u-act-03": wrong_method(
        "gelu_tanh", "gelu", "erf|exact", gelu=lambda a, right, x, approximate="none": _gelu(x)
    ),
    "u-act-04": wrong_method("gelu_tanh", "gelu", "NaN|large|overflow", gelu=_tanh_of_large),
    "u-att-01": wrong_method(
        "attention", "attention", r"scale.*(all heads|width|C\b|channels|H \* D|H D|heads)", attention=_every_head
    ),
    "u-att-02": wrong_method(
        "attention", "attention", "softmax.*quer|over (the )?quer|along (the )?quer", attention=_over_queries
    ),
    "u-att-04": wrong_method("softmax", "softmax", "maximum|below|-3275", softmax=_maximum_of_half),
    "u-att-05": wrong_method("attention", "attention", "head", attention=_key_head_by_remainder),
    "u-att-06": wrong_method("attention", "attention", "zero.*key|key.*zero|padd", attention=_zero_keys),
    "u-att-08": wrong_method("attention", "attention", "float16|f16", "attention/*", attention=_scores_in_half),
    "u-conv-01": wrong_method("conv2d", "conv2d", "dilation", conv2d=_one_dilation),
    "u-conv-02": wrong_method("conv2d", "conv2d", "pad", conv2d=_low_padding_twice),
    "u-conv-03": wrong_method(
        "conv2d",
        "conv2d",
        "(pad|border|beyond|edge).*row|row.*(pad|border|beyond|edge)|next row|neighbour",
        conv2d=_neighbouring_rows,
    ),
    "u-conv-04": other_result("pad", "shift|moved|begin|both|padding|sides|pixel", _both_ends),
    "u-conv-05": other_result("resize_nearest", "round|nearest|centre|half", _rounded_places),
    "u-conv-06": other_result("resize_bilinear", "corner", _corners),
    "u-conv-07": other_result("pixel_shuffle", "order|last|first|channel", _depth_first),
    "u-conv-08": other_result("patchify", "order|last|first|channel", _other_order),
    "u-conv-09": other_result("avg_pool2d", "pad|inside|count|border", _by_pixels_seen),
    "u-conv-10": wrong_method(
        "conv2d", "conv2d", "(zero|not computed|nothing is).*(last|tail|channel)", conv2d=_tail_channels
    ),
    "u-rope-02": wrong_method("rope", "rope", "head", rope=_angle_of_the_head, rope_halves=_angle_of_the_head),
    "u-rope-03": wrong_method("rope", "rope", "pair|interleav|half|halves", rope_halves=_frequencies_of_pairs),
    "u-rope-04": wrong_method(
        "rope", "rope", "first half|axis|axes|second half", rope=_first_half_again, rope_halves=_first_half_again
    ),
    "u-time-01": wrong_method("timestep_embedding", "timestep", "sin|cos", timestep_embedding=_halves_swapped),
}
HELD_OUT_OPERATIONS = sourced("op", _TABLE)
