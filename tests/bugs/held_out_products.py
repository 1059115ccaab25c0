"""Bugs of products, norms and block types that the judge's known bugs were not written from."""

import numpy as np
from held_out_sources import sourced
from injection import Injection, other_result, wrong_method

# --- products ----------------------------------------------------------------------------------------------------


def _odd_block(a, right, x, weight, bias=None, weight_type="f32"):
    """ggml 635545fc: two blocks of 32 at a time; the last of an odd number is left out."""
    K = x.shape[-1]
    if weight_type in ("q4_0", "q8_0", "q4_1", "q5_0", "q5_1") and K // 32 % 2:
        x = np.array(x)
        x[..., -32:] = 0
    return right(x, weight, bias, weight_type)


def _first_matrix(a, right, x, *rest, **named):
    """ggml e95f3be4: every matrix of a batch is the first one."""
    y = np.array(right(x, *rest, **named))
    return np.broadcast_to(y[:1], y.shape) if y.ndim > 2 else y


def _sums_in_half(a, right, x, weight, bias=None, weight_type="f32"):
    """ggml 4eebfaa5: the accumulator is a float16."""
    if weight_type != "f16":
        return right(x, weight, bias, weight_type)
    rows = np.asarray(x, np.float16).reshape(-1, x.shape[-1])
    y = np.zeros((len(rows), len(weight)), np.float16)
    for k in range(rows.shape[1]):
        y = (y + (rows[:, k, None] * np.asarray(weight, np.float16)[None, :, k])).astype(np.float16)
    return y.astype(np.float32).reshape(*x.shape[:-1], -1) + (0 if bias is None else bias)


def _bias_of_each_part(a, right, x, weight, bias=None, *rest):
    """A product in two parts along K, each of which adds the bias."""
    return right(x, weight, None if bias is None else bias + bias, *rest)


# --- norms -------------------------------------------------------------------------------------------------------


def _groups(x, num_groups):
    return np.asarray(x, np.float64).reshape(len(x), num_groups, -1)


def _affine(y, x, weight, bias):
    sides = (-1, *(1,) * (x.ndim - 2))
    return y.reshape(x.shape) * np.reshape(weight, sides) + np.reshape(bias, sides)


def _statistics_of_the_first(a, right, x, weight, bias, num_groups=32, eps=1e-5):
    """tt-metal 57223: later items are normalised by the first one's mean and variance."""
    g = _groups(x, num_groups)
    y = (g - g[:1].mean(-1, keepdims=True)) / np.sqrt(g[:1].var(-1, keepdims=True) + eps)
    return _affine(y, x, weight, bias)


def _lanes_counted(a, right, x, weight, bias, num_groups=32, eps=1e-5):
    """FlagGems 4984: a group filled up with zeros to a power of two; (0 - mean)^2 counts in the variance."""
    g = _groups(x, num_groups)
    n, mean = g.shape[-1], g.mean(-1, keepdims=True)
    more = (1 << (n - 1).bit_length()) - n
    variance = (((g - mean) ** 2).sum(-1, keepdims=True) + more * mean**2) / n
    return _affine((g - mean) / np.sqrt(variance + eps), x, weight, bias)


def _one_pass(a, right, x, weight, bias, num_groups=32, eps=1e-5):
    """pytorch 54293: E[x^2] - E[x]^2 in float32."""
    g = _groups(x, num_groups).astype(np.float32)
    mean, square = g.mean(-1, keepdims=True), (g * g).mean(-1, keepdims=True)
    y = (g - mean) / np.sqrt(np.maximum(square - mean * mean, 0) + np.float32(eps))
    return _affine(y, x, weight, bias)


def _eps_in_the_root(a, right, x, eps=1e-12):
    """ggml b5d892af: sqrt(max(sum, eps)) for max(sqrt(sum), eps)."""
    x = np.asarray(x, np.float64)
    return x / np.sqrt(np.maximum((x * x).sum(-1, keepdims=True), eps))


def _half_the_groups(a, right, x, weight, bias, num_groups=32, eps=1e-5):
    """ColossalAI 3109: 16 groups for 32."""
    return right(x, weight, bias, num_groups // 2 if num_groups % 2 == 0 else num_groups, eps)


def _unbiased(a, right, x, weight=None, bias=None, eps=1e-5):
    """torch.std: divided by D - 1."""
    x = np.asarray(x, np.float64)
    y = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True, ddof=1) + eps)
    return y * (1 if weight is None else weight) + (0 if bias is None else bias)


def _eps_behind_the_root(a, right, x, weight, eps=1e-6):
    x = np.asarray(x, np.float64)
    y = x / (np.sqrt((x * x).mean(-1, keepdims=True)) + eps)
    return y if weight is None else y * weight


def _tail_not_centred(a, right, x, weight=None, bias=None, eps=1e-5):
    """ggml dc79fd74: behind the last whole 8, x - mean is not stored: x itself is scaled."""
    x, D = np.asarray(x, np.float64), x.shape[-1]
    centred = x - x.mean(-1, keepdims=True)
    centred[..., D // 8 * 8 :] = x[..., D // 8 * 8 :]
    y = centred / np.sqrt(x.var(-1, keepdims=True) + eps)
    return y * (1 if weight is None else weight) + (0 if bias is None else bias)


def _without_the_one(a, right, x, shift, scale):
    return np.asarray(x, np.float64) * np.asarray(scale)[:, None] + np.asarray(shift)[:, None]


def _one_more(a, right, x, weight, eps=1e-6):
    return right(x, None if weight is None else weight + 1, eps)


# --- block types -------------------------------------------------------------------------------------------------


def of_blocks(types, unpack):
    """A bug in reading blocks of some types: unpack(blocks [rows, bytes], the right values [rows, K]) -> values."""

    def change(case, inputs, y):
        tensor = inputs["x"]
        if tensor.type not in types:
            return y
        rows = int(np.prod(tensor.shape[:-1]))
        return unpack(tensor.data.reshape(rows, -1), y.astype(np.float64).reshape(rows, -1)).reshape(y.shape)

    return lambda case, inputs, y: np.asarray(change(case, inputs, y)).astype(y.dtype)


def _linear_codes(blocks, right):
    """ggml 1ca424e8: IQ4_NL read as Q4_0, whose codes are 0..15 less 8."""
    b = blocks.reshape(-1, 18)
    d = b[:, :2].copy().view(np.float16).astype(np.float64)
    return d * (np.concatenate([b[:, 2:] & 15, b[:, 2:] >> 4], axis=1).astype(np.float64) - 8)


def _neighbouring_nibbles(blocks, right):
    """ggml 6a95a4c4: the two halves of a byte are neighbours, not 32 apart."""
    y = right.reshape(-1, 4, 2, 32)
    return np.ascontiguousarray(y.swapaxes(2, 3))


def _unsigned_scales(blocks, right):
    b = blocks.reshape(-1, 210)
    codes = b[:, 192:208]
    factor = codes.astype(np.float64) / np.where(codes == 0, 1, codes.view(np.int8)).astype(np.float64)
    return right.reshape(-1, 16, 16) * factor[:, :, None]


def _fifth_bits_of_the_first_half(blocks, right):
    b = blocks.reshape(-1, 22)
    d, bits = b[:, :2].copy().view(np.float16).astype(np.float64), b[:, 2:6].copy().view(np.uint32)
    high = (bits >> np.arange(16)) & 1
    q = np.concatenate([b[:, 6:] & 15, b[:, 6:] >> 4], axis=1) + 16 * np.concatenate([high, high], axis=1)
    return d * (q.astype(np.float64) - 16)


def _small_scales_flushed(blocks, right):
    b = blocks.reshape(-1, 18)
    d = np.abs(b[:, :2].copy().view(np.float16).astype(np.float64))
    return np.where(d < 2.0**-14, 0, right.reshape(-1, 32))


def _minimum_subtracted(blocks, right):
    b = blocks.reshape(-1, 20)
    m = b[:, 2:4].copy().view(np.float16).astype(np.float64)
    return right.reshape(-1, 32) - 2 * m


def _scale_for_minimum(blocks, right):
    b = blocks.reshape(-1, 84)
    scales, qs = b[:, :16], b[:, 16:80]
    d, dmin = (b[:, i : i + 2].copy().view(np.float16).astype(np.float64) for i in (80, 82))
    q = np.stack([(qs.reshape(-1, 2, 32) >> shift) & 3 for shift in (0, 2, 4, 6)], axis=2).reshape(-1, 16, 16)
    return d[..., None] * (scales >> 4)[..., None] * q - dmin[..., None] * (scales & 15)[..., None]


def _e4m3_of_amd(case, inputs, y):
    """float8_e4m3fnuz, whose bias is 8, for float8_e4m3fn with 7: half of each number."""
    if not str(inputs["x"].type).startswith("f8_e4m3"):
        return y
    return (y.astype(np.float64) / 2).astype(y.dtype)


_TABLE: dict[str, Injection] = {
    "u-mm-01": wrong_method(
        "linear", "linear", "last (block|32|columns)|odd|block", "linear/q*", linear=_odd_block
    ),
    "u-mm-02": wrong_method("linear", "linear", "batch|first item|first matrix", linear=_first_matrix),
    "u-mm-03": wrong_method("linear", "linear", "float16|f16", "linear/f16/*", linear=_sums_in_half),
    "u-mm-04": wrong_method("linear", "linear", "bias.*twice|twice.*bias", linear=_bias_of_each_part),
    "u-norm-01": wrong_method(
        "group_norm", "group_norm", "item|batch", "group_norm/*", group_norm=_statistics_of_the_first
    ),
    "u-norm-02": wrong_method(
        "group_norm",
        "group_norm",
        "power of (two|2)|filled|zeros.*count|padded",
        "group_norm/*",
        group_norm=_lanes_counted,
    ),
    "u-norm-03": wrong_method(
        "group_norm",
        "group_norm",
        r"E\[x|one pass|squares|mean of squares|cancel",
        "group_norm/*",
        group_norm=_one_pass,
    ),
    "u-norm-04": wrong_method("l2_norm", "l2_norm", "eps.*(root|square)", l2_norm=_eps_in_the_root),
    "u-norm-06": wrong_method("group_norm", "group_norm", "groups", "group_norm/*", group_norm=_half_the_groups),
    "u-norm-07": wrong_method("layer_norm", "layer_norm", "n - 1|D - 1|unbiased", layer_norm=_unbiased),
    "u-norm-08": wrong_method(
        "rms_norm", "rms_norm", "eps.*(outside|behind|after|root)", rms_norm=_eps_behind_the_root
    ),
    "u-norm-09": wrong_method(
        "layer_norm", "layer_norm", "(mean|centred|centered).*(last|tail|beyond)", layer_norm=_tail_not_centred
    ),
    "u-norm-11": wrong_method("modulate", "modulate", r"\b1\b|one", modulate=_without_the_one),
    "u-norm-12": wrong_method(
        "rms_norm", "rms_norm", r"1 \+|\+ 1|weight.*(one|1)|1 is added to weight", rms_norm=_one_more
    ),
    "u-q-01": other_result("dequantize", "table|linear|codes|q4_0", of_blocks(("iq4_nl",), _linear_codes)),
    "u-q-02": other_result(
        "dequantize", "nibble|order|interleav|neighbour|half|halves", of_blocks(("q4_k",), _neighbouring_nibbles)
    ),
    "u-q-03": other_result("dequantize", "sign", of_blocks(("q6_k",), _unsigned_scales)),
    "u-q-04": other_result("dequantize", "fifth|high bit|bit", of_blocks(("q5_0",), _fifth_bits_of_the_first_half)),
    "u-q-05": other_result(
        "dequantize", "subnormal|denormal|flush|small", of_blocks(("q4_0",), _small_scales_flushed)
    ),
    "u-q-06": other_result("dequantize", "fnuz|exponent|bias|half of|0.5|times", _e4m3_of_amd),
    "u-q-07": other_result("dequantize", "minim|subtract|sign", of_blocks(("q4_1",), _minimum_subtracted)),
    "u-q-08": other_result("dequantize", "swap|minim", of_blocks(("q2_k",), _scale_for_minimum)),
}
HELD_OUT_PRODUCTS = sourced("op", _TABLE)
