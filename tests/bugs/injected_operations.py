"""Bugs of single operations. None of them calls a known bug of golden's pages."""

import itertools

import ml_dtypes
import numpy as np
from injection import Injection, wrong_operation

from refsd.numerics.tensor import StoredTensor


def _operation(op: str, place: str, cause: str, *cases: str, **methods) -> Injection:
    """A wrong method of Arithmetic; asked are all cases of the operation, or those that match `cases`."""
    return Injection(cases or (f"{op}/*",), wrong_operation(**methods), place, cause)


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
    """0 * memory that nobody wrote: infinite where that holds no number."""
    y = np.array(right(x, scale, mask, sinks))
    y.reshape(-1, y.shape[-1])[1::3] = np.nan
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


# --- products ----------------------------------------------------------------------------------------------------


def _tail_columns_by_row(a, right, x, weight, bias=None, weight_type="f32"):
    """The last O % 16 columns: A[i + k] for A[i K + k]."""
    y = np.array(right(x, weight, bias, weight_type))
    O, K = weight.shape
    tail = O % 16
    rows = np.asarray(x, np.float64).reshape(-1, K)
    if tail and len(rows) > 1:
        flat = np.append(rows.ravel(), np.zeros(K))
        shifted = np.stack([flat[i : i + K] for i in range(len(rows))])
        wrong = shifted @ np.asarray(weight, np.float64)[-tail:].T + (0 if bias is None else bias[-tail:])
        y[..., -tail:] = wrong.reshape(*y.shape[:-1], tail)
    return y


def _lanes_dropped(a, right, x, weight, bias=None, weight_type="f32"):
    """Of eight sums, those lanes that the last, shorter step does not fill are lost."""
    K = weight.shape[1]
    tail = K % 8
    if not tail:
        return right(x, weight, bias, weight_type)
    kept = (np.arange(K) % 8 < tail) | (np.arange(K) >= K - tail)
    return right(np.where(kept, x, 0).astype(x.dtype), weight, bias, weight_type)


def _zero_block_is_nan(a, right, x, weight, bias=None, weight_type="f32"):
    """x / d with d = max / 127 of 32 values, all of which are zero."""
    y = np.array(right(x, weight, bias, weight_type))
    K = x.shape[-1]
    if weight_type in ("q8_0", "q4_0") and K % 32 == 0:
        y[(np.asarray(x).reshape(*x.shape[:-1], K // 32, 32) == 0).all(-1).any(-1)] = np.nan
    return y


def _patchify(x, patch):
    N, C, H, W = x.shape
    blocks = np.asarray(x).reshape(N, C, H // patch, patch, W // patch, patch)
    return np.einsum("nchpwq->nhwcpq", blocks).reshape(N, H // patch * (W // patch), -1)


def _answered(op: str, cause: str, change) -> Injection:
    """A bug in what the operation writes."""
    from injection import Bug

    return Injection(
        (f"{op}/*",), Bug(answer=lambda case, inputs, y: {"y": change(case, inputs, y["y"])}), op, cause
    )


def _untransposed(case, inputs, y):
    """Where a side of the picture has one channel, tokens come as the picture lies in memory."""
    x = inputs["x"]
    return np.ascontiguousarray(x.values()).reshape(y.shape).astype(y.dtype) if 1 in x.shape[1:] else y


def _rows_of_a_grid(case, inputs, y):
    """65535 blocks of 32 rows."""
    wrong = y.copy()
    wrong.reshape(-1, y.shape[-1])[65535 * 32 :] = 0
    return wrong


# --- norms -------------------------------------------------------------------------------------------------------


def _normed(x, mean, square, eps):
    return (x - mean) / np.sqrt(square - mean**2 + eps)


def _layer_norm_of_1e_6(a, right, x, weight=None, bias=None, eps=1e-5):
    x = np.asarray(x, np.float64)
    y = _normed(x, x.mean(-1, keepdims=True), (x * x).mean(-1, keepdims=True), 1e-6)
    return y * (1 if weight is None else weight) + (0 if bias is None else bias)


def _group_reads_on(a, right, x, weight, bias, num_groups=32, eps=1e-5):
    """Statistics of a group take in what follows it, up to a whole number of 512."""
    N, C = x.shape[:2]
    flat = np.asarray(x, np.float64).ravel()
    size = flat.size // N // num_groups
    wrong = np.empty_like(flat)
    for start in range(0, flat.size, size):
        read = flat[start : start + -(-size // 512) * 512]
        mean, square = read.sum() / size, (read**2).sum() / size
        wrong[start : start + size] = _normed(flat[start : start + size], mean, square, eps)
    sides = (1,) * (x.ndim - 2)
    return wrong.reshape(x.shape) * np.reshape(weight, (C, *sides)) + np.reshape(bias, (C, *sides))


def _part_of_the_sum_lost(a, right, x, weight, eps=1e-6):
    """Of a row that ends in a part of 32, the sum over the 32 before that part is lost."""
    D = x.shape[-1]
    x = np.asarray(x, np.float64)
    counted = np.ones(D)
    if D % 32 and D > 32:
        counted[D // 32 * 32 - 32 : D // 32 * 32] = 0
    y = x / np.sqrt((x * x * counted).sum(-1, keepdims=True) / D + eps)
    return y if weight is None else y * weight


def _squares_in_float16(a, right, x, eps=1e-12):
    half = np.asarray(x).astype(np.float16)
    square = np.add.accumulate((half * half).astype(np.float16), axis=-1, dtype=np.float16)[..., -1:]
    return np.asarray(x, np.float32) / np.maximum(np.sqrt(square.astype(np.float32)), np.float32(eps))


def _groups_of_a_flat_tensor(a, right, x, weight, bias, num_groups=32, eps=1e-5):
    """A tensor of [N, C] has one channel along the axis that groups are cut from: all is one group."""
    if x.shape[2:] != (1, 1):
        return right(x, weight, bias, num_groups, eps)
    x = np.asarray(x, np.float64)
    y = (x - x.mean()) / np.sqrt(x.var() + eps)
    return y * np.reshape(weight, (-1, 1, 1)) + np.reshape(bias, (-1, 1, 1))


# --- block types -------------------------------------------------------------------------------------------------


def _expanded(types: tuple[str, ...], unpack):
    """A weight of some types is unpacked by other code. unpack: blocks [n, bytes], rows, right values -> values"""

    def expand(a, right, weight: StoredTensor):
        y = np.array(right(weight))
        if weight.type not in types:
            return y
        rows = int(np.prod(weight.shape[:-1]))
        blocks = weight.data.reshape(rows, -1)
        return unpack(blocks, np.asarray(y, np.float64).reshape(rows, -1)).reshape(y.shape)

    return expand


def _types(op: str, cause: str, types: tuple[str, ...], unpack, **more) -> Injection:
    def values(case, inputs, y):
        tensor = inputs["x"]
        if tensor.type not in types:
            return y
        rows = int(np.prod(tensor.shape[:-1]))
        blocks = tensor.data.reshape(rows, -1)
        return unpack(blocks, y.astype(np.float64).reshape(rows, -1)).reshape(y.shape).astype(y.dtype)

    return (
        _answered(op, cause, values)
        if op == "dequantize"
        else _operation(op, op, cause, expand=_expanded(types, unpack))
    )


def _q3_k_of_nibbles(blocks, right):
    """Scales of four bits, less 8: the last four bytes of the twelve are not read."""
    b = blocks.reshape(-1, 110)
    hmask, qs, scales, d = b[:, :32], b[:, 32:96], b[:, 96:108], b[:, 108:].copy().view(np.float16)
    codes = np.concatenate([scales[:, :8] & 15, scales[:, :8] >> 4], axis=1).astype(np.float64) - 8
    values = np.empty((len(b), 256))
    for half, pair in itertools.product(range(2), range(4)):
        low = (qs[:, 32 * half : 32 * half + 32] >> (2 * pair)) & 3
        high = (hmask >> (4 * half + pair)) & 1
        q = low.astype(np.float64) - 4 * (1 - high.astype(np.float64))
        at = 128 * half + 32 * pair
        values[:, at : at + 32] = q * np.repeat(codes[:, at // 16 : at // 16 + 2], 16, axis=1)
    return d.astype(np.float64) * values


def _q4_1_raw_scale(blocks, right):
    """d as the number that its sixteen bits count."""
    b = blocks.reshape(-1, 20)
    d, m = b[:, :2].copy().view(np.uint16), b[:, 2:4].copy().view(np.float16)
    q = np.concatenate([b[:, 4:] & 15, b[:, 4:] >> 4], axis=1)
    return d.astype(np.float64) * q + m.astype(np.float64)


def _second_half_zero(blocks, right):
    wrong = right.reshape(-1, 256).copy()
    wrong[:, 128:] = 0
    return wrong


def _scales_overwritten(blocks, right):
    """The scales of the rows after the last whole 16 lie where the first rows' were written later."""
    b = blocks.reshape(len(blocks), -1, 34)
    tail = len(blocks) % 16
    if not tail or len(blocks) < 16:
        return right
    own, other = (
        b[rows, :, :2].copy().view(np.float16).astype(np.float64) for rows in (slice(-tail, None), slice(0, tail))
    )
    wrong = right.reshape(len(blocks), -1, 32).copy()
    wrong[-tail:] *= other / own
    return wrong


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
    "act-01": _operation("swiglu", "swiglu", "GELU for SiLU", swiglu=_swiglu_with_gelu),
    "act-03": _operation("gelu", "gelu", "tanh", gelu=lambda a, right, x, approximate="none": _gelu_tanh(x)),
    "act-04": _operation("gelu", "gelu", "zero|nothing is computed", "gelu/*", gelu=_Once()),
    "att-01": _operation("softmax", "softmax", "memory that nobody wrote", softmax=_softmax_with_garbage),
    "att-03": _operation("attention", "attention", "mask.*first query", attention=_mask_of_one_query),
    "att-07": _operation("attention", "attention", "NaN.*first", attention=_hidden_first_block),
    "att-08": _operation("attention", "attention", "ratio.*power of two", attention=_head_of_padded_ratio),
    "conv-02": _operation("conv2d", "conv2d", "batch", conv2d=_first_item),
    "conv-03": _operation("conv2d", "conv2d", "taps", conv2d=_taps_by_width),
    "conv-05": _operation("conv2d", "conv2d", "channels.*(8|lanes)", conv2d=_channels_by_fours),
    "conv-10": _operation("conv2d", "conv2d", "padding", conv2d=_padding_forgotten),
    "conv-11": _operation("conv2d", "conv2d", "padding of rows and columns swapped", conv2d=_pads_swapped),
    "conv-13": _operation("conv2d", "conv2d", "nothing is computed.*the last 65 of 65600", conv2d=_rows_beyond),
    "mm-01": _operation("linear", "linear", "row i read from.*in the last", linear=_tail_columns_by_row),
    "mm-03": _operation("linear", "linear", "lanes", linear=_lanes_dropped),
    "mm-06": _answered("patchify", "not (moved|transposed)|as it lies", _untransposed),
    "mm-08": _answered("patchify", "nothing is computed.*from 2097120 on", _rows_of_a_grid),
    "norm-01": _operation("layer_norm", "layer_norm", "eps", layer_norm=_layer_norm_of_1e_6),
    "norm-04": _operation(
        "group_norm", "group_norm", "read on|next group", "group_norm/*", group_norm=_group_reads_on
    ),
    "norm-06": _operation("rms_norm", "rms_norm", "32", rms_norm=_part_of_the_sum_lost),
    "norm-08": _operation("l2_norm", "l2_norm", "float16", l2_norm=_squares_in_float16),
    "norm-10": _operation(
        "group_norm", "group_norm", "one group|batch|axis", "group_norm/*", group_norm=_groups_of_a_flat_tensor
    ),
    "q-01": _types("dequantize", "packed scales", ("q3_k",), _q3_k_of_nibbles),
    "q-04": _types("dequantize", "bits", ("q4_1",), _q4_1_raw_scale),
    "q-05": _operation("linear", "linear", "block.*zero", linear=_zero_block_is_nan),
    "q-07": _types("dequantize", "other scales, in the last.*axis 0", ("q8_0",), _scales_overwritten),
    "q-09": _types("dequantize", "half", ("q5_k",), _second_half_zero),
    "rope-01": _operation("rope", "rope", "pairing", rope=_other_pairs(True), rope_halves=_other_pairs(False)),
    "rope-03": _operation("rope", "rope", "bfloat16", rope_angles=_angles_in_bfloat16),
    "rope-06": _answered("rope", "not turned|tail", _tail_of_other_memory),
    "time-01": _operation(
        "timestep_embedding",
        "timestep",
        "nothing is written, in .*the last 1 of",
        timestep_embedding=_last_column_unwritten,
    ),
    "time-03": _operation("timestep_embedding", "timestep", "half - 1", timestep_embedding=_by_half_minus_one),
    "time-05": _operation("timestep_embedding", "timestep", "one too small", timestep_embedding=_one_less),
    "up-01": _operation("esrgan", "conv|esrgan", "float16", "esrgan/esrgan/*", "conv2d/*", conv2d=_as_float16),
    "vae-19": _operation("conv2d", "conv2d", "height and width", "conv2d/*", conv2d=_read_across),
}
