"""Bugs of operations that no case showed when their sets were drawn, and that one shows since."""

import numpy as np
from injection import Bug, Injection, wrong_method
from msgspec.structs import replace

from refsd.engines.reference import Reference
from refsd.kernels.attention_int8 import codes_of_blocks
from refsd.numerics.profiles import PROFILES

# --- attention ---------------------------------------------------------------------------------------------------


def _one_tile_of_a_group(a, right, q, k, v, *rest, **named):
    """A head of keys has one tile of 16 query heads: further ones are not written."""
    y, group = np.array(right(q, k, v, *rest, **named)), q.shape[2] // k.shape[2]
    y[:, :, np.arange(q.shape[2]) % group >= 16] = 0
    return y


def _maximum_from_50000(a, right, q, k, v, scale=None, mask=None, diagonal=None, sinks=None):
    """The running maximum of the products begins at -5e4: rows that are all below have weights of 0."""
    products = np.einsum("blhd,bjhd->blhj", q, np.repeat(k, q.shape[2] // k.shape[2], axis=2))
    low = products.max(axis=-1, keepdims=True) < -5e4
    return np.where(low, 0, right(q, k, v, scale, mask, diagonal, sinks))


def _hidden_are_10000(a, right, q, k, v, scale=None, mask=None, diagonal=None, sinks=None):
    """The scores of hidden keys are -10000, above which all others may be."""
    s = np.einsum("blhd,bjhd->bhlj", q, k).astype(np.float64) * scale
    s = np.where(np.isneginf(mask), -1e4, s + np.where(np.isneginf(mask), 0, mask))
    e = np.exp(s - s.max(axis=-1, keepdims=True))
    return np.einsum("bhlj,bjhe->blhe", e / e.sum(axis=-1, keepdims=True), v)


def _causal_for_the_tail(a, right, q, k, v, scale=None, mask=None, diagonal=None, sinks=None):
    """Only the kernel of lengths that tiles of 32 do not divide has a mask, and with it the causal one."""
    whole = q.shape[1] % 32 == 0 and k.shape[1] % 32 == 0
    return right(q, k, v, scale, mask, None if whole else diagonal, sinks)


def _scales_of_queries_in_half(case, inputs, y):
    """The scale of each block of 128 queries is float16, in which the faintest are 0."""
    q, k, v = (inputs[name].values().astype(np.float64) for name in "qkv")
    q8, sq = codes_of_blocks(q * q.shape[-1] ** -0.5, 128)
    k8, sk = codes_of_blocks(k - k.mean(axis=1, keepdims=True), 64)
    s = np.einsum("blhd,bjhd->bhlj", q8 * np.asarray(sq).astype(np.float16).astype(np.float64), k8 * sk)
    p = np.exp(s - s.max(axis=-1, keepdims=True))
    return {"y": np.einsum("bhlj,bjhe->blhe", p / p.sum(axis=-1, keepdims=True), v)}


def _scores_in_half(a, right, q, k, v, scale=None, mask=None, diagonal=None, sinks=None):
    with np.errstate(over="ignore"):
        s = (np.einsum("blhd,bjhd->bhlj", q, k) * (scale or 1)).astype(np.float16).astype(np.float64)
    e = np.exp(s - s.max(axis=-1, keepdims=True))
    return np.einsum("bhlj,bjhe->blhe", e / e.sum(axis=-1, keepdims=True), v)


# --- products ----------------------------------------------------------------------------------------------------


def _two_blocks_a_step(a, right, x, weight, bias=None, weight_type="f32"):
    """Blocks of 32 are summed two by two: the last of an odd number is not."""
    seen = x.shape[-1] // 64 * 64
    if seen == 0:
        y = np.zeros((*x.shape[:-1], len(weight)))
        return y if bias is None else y + bias
    return right(np.ascontiguousarray(x[..., :seen]), np.ascontiguousarray(weight[:, :seen]), bias, "f32")


def _rows_of(groups: int) -> Bug:
    """A grid of so many groups, one a row: the others are not written."""

    def answer(case, inputs, y):
        y = y["y"].copy()
        y.reshape(-1, y.shape[-1])[groups:] = 0
        return {"y": y}

    return Bug(answer=answer)


def _rows_by_the_columns(case, inputs, y):
    """Tiles of rows are counted by half of the columns."""
    return _rows_of(inputs["x"].shape[-1] // 2).answer(case, inputs, y)


def _sum_in_half(a, right, x, weight, bias, num_groups=32, eps=1e-5):
    """The mean's sum is float16, whose largest number is 65504."""
    rows = np.asarray(x, np.float16).reshape(len(x), num_groups, -1)
    mean = np.add.accumulate(rows, axis=2, dtype=np.float16)[..., -1:].astype(np.float64) / rows.shape[2]
    t = rows.astype(np.float64) - mean
    y = (t / np.sqrt(np.square(t).mean(axis=2, keepdims=True) + eps)).reshape(x.shape)
    return y * weight[:, None, None] + bias[:, None, None]


# --- pictures ----------------------------------------------------------------------------------------------------


def _pixels_of_16_bits(case, inputs, y):
    """A grid has 65535 pixels at the most: the others are not written."""
    y = y["y"].copy()
    y[..., 65535:] = 0
    return {"y": y}


def _taps_of_a_block(case, inputs, y):
    """A thread for each tap of a column, of 1024."""
    y = y["y"].copy()
    y[:, 1024:] = 0
    return {"y": y}


def _by_the_sizes(case, inputs, y):
    """A resize by a factor goes by the quotient of the sizes."""
    params = {name: value for name, value in case.params.items() if name != "factors"}
    return Reference(PROFILES["float32"]).run(replace(case, params=params), inputs)


_ROWS = r"rows from (32768|65535|32)|not (computed|written)|6553[56]|32768"
SINCE_OPERATIONS: dict[str, Injection] = {
    "fi-op-12": Injection(("linear/f32/rows-*",), _rows_of(32768), "linear", _ROWS),
    "fi-op-13": Injection(
        ("softmax/f32/rows-*", "rms_norm/f32/rows-*"), _rows_of(65535), "softmax|rms_norm", _ROWS
    ),
    "sn-op-20": Injection(("rms_norm/f32/rows-*",), _rows_of(32768), "rms_norm", _ROWS),
    "xv-op-10": wrong_method(
        "attention",
        "attention",
        "future|causal",
        "attention/f32/causal-*",
        attention=_causal_for_the_tail,
    ),
    "sn-op-22": Injection(
        ("attention_int8/faint-*",),
        Bug(answer=_scales_of_queries_in_half),
        "attention_int8",
        "scales of queries in float16",
    ),
    "xv-op-12": wrong_method(
        "attention",
        "attention",
        "maximum.*-50000|-5e4",
        "attention/f32/low-*",
        attention=_maximum_from_50000,
    ),
    "xv-op-13": wrong_method(
        "attention",
        "attention",
        "large negative|-1e4|-10000|hidden|inverted",
        "attention/f32/low-*",
        attention=_hidden_are_10000,
    ),
    "xv-op-19": Injection(
        ("resize_bilinear/f32/factor-*",),
        Bug(answer=_by_the_sizes),
        "resize_bilinear",
        "factor|H / height",
    ),
    "eh-op-08": Injection(
        ("resize_bicubic/f32/factor-*",),
        Bug(answer=_by_the_sizes),
        "resize_bicubic",
        "factor|H / height",
    ),
    "sn-op-14": Injection(("im2col/f32/one-axis-*",), Bug(answer=_taps_of_a_block), "im2col", "1024"),
    "sn-op-15": wrong_method(
        "group_norm",
        "group_norm",
        "sum in float16|sums?.*float16",
        "group_norm/f32/summed-*",
        group_norm=_sum_in_half,
    ),
    "eh-op-01": Injection(
        ("linear/q8_0/tall-*", "linear_int8/tall-*"),
        Bug(answer=_rows_by_the_columns),
        "linear",
        "half as many as columns",
    ),
    "eh-op-25": wrong_method(
        "attention",
        "attention",
        "scores in float16|beyond 65504",
        "attention/f32/beyond-*",
        attention=_scores_in_half,
    ),
    "ty-op-11": wrong_method(
        "attention",
        "attention",
        r"heads?.*(16|24|written|empty|zero)|16 to 23 of every 24",
        "attention/f32/one-query-*",
        attention=_one_tile_of_a_group,
    ),
    "eh-op-31": wrong_method(
        "linear",
        "linear",
        "last columns|not (read|summed)|left out|block",
        "linear/q8_0/tall-*",
        "linear/q4_0/tall-*",
        linear=_two_blocks_a_step,
    ),
    "xv-op-20": Injection(
        ("pad/f32/frames-*",),
        Bug(answer=_pixels_of_16_bits),
        "pad",
        r"6553[56]|last 65 of 65600",
    ),
}
