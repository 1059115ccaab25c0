"""Bugs of matrix products, norms and block types."""

import itertools

import numpy as np
from injection import Injection, other_result, wrong_method

from refsd.numerics.tensor import StoredTensor

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
        other_result(op, cause, values)
        if op == "dequantize"
        else wrong_method(op, op, cause, expand=_expanded(types, unpack))
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


PRODUCTS: dict[str, Injection] = {
    "mm-01": wrong_method("linear", "linear", "row i read from.*in the last", linear=_tail_columns_by_row),
    "mm-03": wrong_method("linear", "linear", "lanes", linear=_lanes_dropped),
    "mm-06": other_result("patchify", "not (moved|transposed)|as it lies", _untransposed),
    "mm-08": other_result("patchify", "nothing is computed.*from 2097120 on", _rows_of_a_grid),
    "norm-01": wrong_method("layer_norm", "layer_norm", "eps", layer_norm=_layer_norm_of_1e_6),
    "norm-04": wrong_method(
        "group_norm", "group_norm", "read on|next group", "group_norm/*", group_norm=_group_reads_on
    ),
    "norm-06": wrong_method("rms_norm", "rms_norm", "32", rms_norm=_part_of_the_sum_lost),
    "norm-08": wrong_method("l2_norm", "l2_norm", "float16", l2_norm=_squares_in_float16),
    "norm-10": wrong_method(
        "group_norm", "group_norm", "one group|batch|axis", "group_norm/*", group_norm=_groups_of_a_flat_tensor
    ),
    "q-01": _types("dequantize", "packed scales", ("q3_k",), _q3_k_of_nibbles),
    "q-04": _types("dequantize", "bits", ("q4_1",), _q4_1_raw_scale),
    "q-05": wrong_method("linear", "linear", "block.*zero", linear=_zero_block_is_nan),
    "q-07": _types("dequantize", "factor of its own, in the last.*axis 0", ("q8_0",), _scales_overwritten),
    "q-09": _types("dequantize", "half", ("q5_k",), _second_half_zero),
}
