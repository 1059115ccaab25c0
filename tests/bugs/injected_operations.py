"""Bugs of activations, attention, convolutions, positions and times, each written here a second time."""

import itertools

import ml_dtypes
import numpy as np
from injection import Injection, other_result, wrong_method

# --- activations -------------------------------------------------------------------------------------------------


def _erf(x):
    """2 / sqrt(pi) times the integral of exp(-t^2), by 64 points of Gauss-Legendre."""
    points, weights = np.polynomial.legendre.leggauss(64)
    x = np.clip(np.asarray(x, np.float64), -6, 6)
    t = (points + 1) / 2
    return x / np.sqrt(np.pi) * (np.exp(-((x[..., None] * t) ** 2)) @ weights)


def _gelu(x):
    return x * 0.5 * (1 + _erf(x / np.sqrt(2)))


def _gelu_tanh(x):
    x = np.asarray(x, np.float64)
    return 0.5 * x * (1 + np.tanh(0.7978845608028654 * (x + 0.044715 * x**3)))


def _swiglu_with_gelu(a, right, x, second_gates=False):
    first, second = np.split(np.asarray(x, np.float64), 2, axis=-1)
    return first * _gelu(second) if second_gates else _gelu(first) * second


class _Once:
    """Zeros the first time: a table that is filled too late."""

    def __init__(self):
        self.calls = itertools.count()

    def __call__(self, a, right, x, *rest):
        return np.zeros_like(x) if next(self.calls) == 0 else right(x, *rest)


# --- attention ---------------------------------------------------------------------------------------------------


def _softmax_with_garbage(a, right, x, scale=1.0, mask=None, sinks=None):
    """0 * memory that nobody wrote: not finite where that, here as ggml's buffers are filled, holds no number."""
    y = np.array(right(x, scale, mask, sinks))
    y.reshape(-1, y.shape[-1])[1::3] = np.frombuffer(b"\xff" * 4, np.float32)[0]
    return y


def _mask_of_one_query(a, right, q, k, v, scale=None, mask=None, diagonal=None, sinks=None):
    """A mask of keys alone, read with a stride of queries: what lies behind it is zeros."""
    if mask is not None and np.ndim(mask) == 4 and mask.shape[2] == 1 < q.shape[1]:
        wide = np.zeros((*mask.shape[:2], q.shape[1], mask.shape[3]), mask.dtype)
        wide[:, :, 0] = mask[:, :, 0]
        mask = wide
    return right(q, k, v, scale, mask, diagonal, sinks)


def _hidden_first_block(a, right, q, k, v, scale=None, mask=None, diagonal=None, sinks=None):
    """exp(-inf - -inf) where a query sees none of the first 32 keys."""
    y = np.array(right(q, k, v, scale, mask, diagonal, sinks))
    if mask is not None and k.shape[1] > 32:
        hidden = np.isneginf(np.broadcast_to(mask, (len(q), q.shape[2], q.shape[1], k.shape[1]))[..., :32]).all(-1)
        y[hidden.transpose(0, 2, 1)] = np.nan
    return y


def _head_of_padded_ratio(a, right, q, k, v, scale=None, mask=None, diagonal=None, sinks=None):
    y = right(q, k, v, scale, mask, diagonal, sinks)
    H, ratio = q.shape[2], q.shape[2] // k.shape[2]
    padded = 1 << (ratio - 1).bit_length()
    wrong = np.zeros_like(y)
    for h in range(H):
        to = h * padded // ratio
        if to < H:
            wrong[:, :, to] = y[:, :, h]
    return wrong


# --- convolutions ------------------------------------------------------------------------------------------------


def _first_item(a, right, x, *rest, **named):
    return np.repeat(right(x[:1], *rest, **named), len(x), axis=0)


def _taps_by_width(a, right, x, weight, bias, stride=1, padding=(0, 0, 0, 0), dilation=1, groups=1):
    """Tap number i lies at row i // R, column i % R, R being the number of rows."""
    K, C, R, S = weight.shape
    if R == S:
        return right(x, weight, bias, stride, padding, dilation, groups)
    (down, across), (high, wide) = np.broadcast_to(stride, 2), np.broadcast_to(dilation, 2)
    top, bottom, left, tail = padding
    # Taps of wrong numbers lie outside the picture's padding.
    x64 = np.pad(np.asarray(x, np.float64), ((0, 0), (0, 0), (top, bottom + 16), (left, tail + 16)))
    P = (x.shape[2] + top + bottom - high * (R - 1) - 1) // down + 1
    Q = (x.shape[3] + left + tail - wide * (S - 1) - 1) // across + 1
    y = np.zeros((len(x), K, P, Q)) + np.asarray(bias, np.float64)[:, None, None]
    for i in range(R * S):
        r, s = divmod(i, R)
        patch = x64[:, :, r * high :, s * wide :][:, :, : P * down : down, : Q * across : across]
        y += np.einsum("nchw,kc->nkhw", patch, np.asarray(weight, np.float64).reshape(K, C, -1)[:, :, i])
    return y


def _channels_by_fours(a, right, x, weight, bias, stride=1, padding=(0, 0, 0, 0), dilation=1, groups=1):
    """Eight channels at a time, from an address that advances by four."""
    if groups != x.shape[1] or groups < 8:
        return right(x, weight, bias, stride, padding, dilation, groups)
    read = np.arange(groups)
    return right(
        np.ascontiguousarray(x[:, read // 8 * 4 + read % 8]), weight, bias, stride, padding, dilation, groups
    )


def _winograd(weight, stride, dilation) -> bool:
    return weight.shape[2:] == (3, 3) and np.all(np.equal(stride, 1)) and np.all(np.equal(dilation, 1))


def _moved(right, x, weight, bias, stride, padding, dilation, groups, top, left):
    """The same number of outputs, from a picture that begins `top` and `left` pixels before the given one."""
    down, across = padding[0] + padding[1], padding[2] + padding[3]
    around = np.pad(x, ((0, 0), (0, 0), (top, max(0, down - top)), (left, max(0, across - left))))
    around = around[:, :, : x.shape[2] + down, : x.shape[3] + across]
    return right(np.ascontiguousarray(around), weight, bias, stride, (0, 0, 0, 0), dilation, groups)


def _padding_forgotten(a, right, x, weight, bias, stride=1, padding=(0, 0, 0, 0), dilation=1, groups=1):
    if not _winograd(weight, stride, dilation):
        return right(x, weight, bias, stride, padding, dilation, groups)
    return _moved(right, x, weight, bias, stride, padding, dilation, groups, 0, 0)


def _pads_swapped(a, right, x, weight, bias, stride=1, padding=(0, 0, 0, 0), dilation=1, groups=1):
    if not _winograd(weight, stride, dilation):
        return right(x, weight, bias, stride, padding, dilation, groups)
    return _moved(right, x, weight, bias, stride, padding, dilation, groups, padding[2], padding[0])


def _rows_beyond(a, right, x, *rest, **named):
    y = np.array(right(x, *rest, **named))
    y[:, :, 65535:] = 0
    return y


# --- positions and times -----------------------------------------------------------------------------------------


def _turn(x, cos, sin, halves):
    x = np.asarray(x, np.float64)
    one, two = np.split(x, 2, axis=-1) if halves else (x[..., ::2], x[..., 1::2])
    y = one * cos - two * sin, one * sin + two * cos
    return np.concatenate(y, axis=-1) if halves else np.stack(y, axis=-1).reshape(x.shape)


def _other_pairs(halves):
    def rope(a, right, x, angle):
        angle = np.asarray(angle)[:, :, None]
        return _turn(x, np.cos(angle), np.sin(angle), halves)

    return rope


def _angles_in_bfloat16(a, right, ids, axes_dim, theta):
    half = ml_dtypes.bfloat16
    parts = []
    for axis, dim in enumerate(axes_dim):
        f = (1 / theta ** (np.arange(0, dim, 2) / dim)).astype(half)
        parts.append(np.asarray(ids)[..., axis, None].astype(half) * f)
    return np.concatenate(parts, axis=-1).astype(half).astype(np.float64)


def _tail_of_other_memory(case, inputs, y):
    """Channels that are not turned are copied from memory in another order: heads before tokens."""
    turned = sum(case.params["axes_dim"])
    x = inputs["x"].values()
    if turned == x.shape[-1]:
        return y
    memory = np.ascontiguousarray(x.transpose(0, 2, 1, 3)).reshape(x.shape)
    return np.concatenate([y[..., :turned], memory[..., turned:]], axis=-1).astype(y.dtype)


def _embedded(t, dim, max_period, scale, sin_first, step):
    half = dim // 2
    angle = scale * np.asarray(t, np.float64)[:, None] * max_period ** (-np.arange(half) / step)
    parts = (np.sin(angle), np.cos(angle)) if sin_first else (np.cos(angle), np.sin(angle))
    return np.concatenate([*parts, np.zeros((len(t), dim % 2))], axis=1)


def _by_half_minus_one(a, right, t, dim, max_period=10000.0, freq_shift=0.0, scale=1.0, sin_first=False):
    return _embedded(t, dim, max_period, scale, sin_first, dim // 2 - 1)


def _one_less(a, right, t, dim, max_period=10000.0, freq_shift=0.0, scale=1.0, sin_first=False):
    return _embedded(np.asarray(t, np.float64) - 1, dim, max_period, scale, sin_first, dim // 2 - freq_shift)


def _last_column_unwritten(a, right, t, dim, *rest, **named):
    y = np.array(right(t, dim, *rest, **named))
    if dim % 2:
        y[:, -1] = [3e-5, -7.25, 0.0, 1.5e3, 2.0][: len(y)]
    return y


def _as_float16(a, right, x, weight, bias, *rest, **named):
    """Autocast: input, weight and result in float16."""
    x, weight = (np.asarray(y, np.float16).astype(np.float32) for y in (x, weight))
    return np.asarray(right(x, weight, bias, *rest, **named), np.float32).astype(np.float16)


def _read_across(a, right, x, *rest, **named):
    """Rows of the picture taken W apart where they lie H apart."""
    N, C, H, W = x.shape
    return right(np.ascontiguousarray(x.reshape(N, C, W, H).transpose(0, 1, 3, 2)), *rest, **named)


OPERATIONS: dict[str, Injection] = {
    "act-01": wrong_method("swiglu", "swiglu", "GELU for SiLU", swiglu=_swiglu_with_gelu),
    "act-03": wrong_method("gelu", "gelu", "tanh", gelu=lambda a, right, x, approximate="none": _gelu_tanh(x)),
    "act-04": wrong_method("gelu", "gelu", "not the same answer twice", "gelu/*", gelu=_Once()),
    "att-01": wrong_method("softmax", "softmax", "memory that nobody wrote", softmax=_softmax_with_garbage),
    "att-03": wrong_method("attention", "attention", "mask.*first query", attention=_mask_of_one_query),
    "att-07": wrong_method("attention", "attention", "NaN.*first", attention=_hidden_first_block),
    "att-08": wrong_method("attention", "attention", "ratio.*power of two", attention=_head_of_padded_ratio),
    "conv-02": wrong_method("conv2d", "conv2d", "batch", conv2d=_first_item),
    "conv-03": wrong_method("conv2d", "conv2d", "taps", conv2d=_taps_by_width),
    "conv-05": wrong_method("conv2d", "conv2d", "channels.*(8|lanes)", conv2d=_channels_by_fours),
    "conv-10": wrong_method("conv2d", "conv2d", "padding", conv2d=_padding_forgotten),
    "conv-11": wrong_method("conv2d", "conv2d", "padding of rows and columns swapped", conv2d=_pads_swapped),
    "conv-13": wrong_method("conv2d", "conv2d", "nothing is computed.*the last 65 of 65600", conv2d=_rows_beyond),
    "rope-01": wrong_method("rope", "rope", "pairing", rope=_other_pairs(True), rope_halves=_other_pairs(False)),
    "rope-03": wrong_method("rope", "rope", "bfloat16", rope_angles=_angles_in_bfloat16),
    "rope-06": other_result("rope", "not turned|tail", _tail_of_other_memory),
    "time-01": wrong_method(
        "timestep_embedding",
        "timestep",
        "nothing is written, in .*the last 1 of",
        timestep_embedding=_last_column_unwritten,
    ),
    "time-03": wrong_method("timestep_embedding", "timestep", "half - 1", timestep_embedding=_by_half_minus_one),
    "time-05": wrong_method("timestep_embedding", "timestep", "one too small", timestep_embedding=_one_less),
    "up-01": wrong_method("esrgan", "conv|esrgan", "float16", "esrgan/esrgan/*", "conv2d/*", conv2d=_as_float16),
    "vae-19": wrong_method("conv2d", "conv2d", "height and width", "conv2d/*", conv2d=_read_across),
}
