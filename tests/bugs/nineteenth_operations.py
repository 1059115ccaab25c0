"""A nineteenth fresh set, of operations: from public trackers, drawn before a look at the judge."""

import ml_dtypes
import numpy as np
from held_out import HeldOut
from injection import Bug, Injection, wrong_method

from refsd.engines.reference import Reference
from refsd.numerics.profiles import PROFILES

# --- products ----------------------------------------------------------------------------------------------------


def _memory_from(t, first, width):
    """Rows of `width` numbers from `first` of each row on, which go on behind its end; zeros behind the last."""
    t = np.ascontiguousarray(t).reshape(-1, t.shape[-1])
    memory = np.concatenate([t.ravel(), np.zeros(width, t.dtype)])
    return memory[(np.arange(len(t)) * t.shape[1] + first)[:, None] + np.arange(width)]


def _whole_blocks_of_16(a, right, x, weight, bias=None, weight_type="f32"):
    """A row has K / 16 blocks, rounded down; what remains is not read."""
    K = x.shape[-1] // 16 * 16 or x.shape[-1]
    return right(np.ascontiguousarray(x[..., :K]), np.ascontiguousarray(weight[:, :K]), bias, weight_type)


def _first_tile_of_outputs(a, right, x, weight, bias=None, weight_type="f32"):
    """Each tile of 16 outputs is loaded from the first one's place."""
    first = np.ascontiguousarray(weight[np.arange(len(weight)) % 16])
    return right(x, first, bias, weight_type)


def _an_even_number_of_stages(a, right, x, weight, bias=None, weight_type="f32"):
    """Stages of 32 go two by two, and one bound holds for both: behind 96 numbers another 32 are read."""
    K = x.shape[-1]
    if K % 64 != 32:
        return right(x, weight, bias, weight_type)
    y = right(_memory_from(x, 0, K + 32), _memory_from(weight, 0, K + 32), bias, weight_type)
    return y.reshape(*x.shape[:-1], -1)


def _tail_of_a_whole_tile(a, right, x, weight, bias=None, weight_type="f32"):
    """The last tile of 64 is as long as others: x goes on in memory, the weight's tile keeps what it had."""
    K, rest = x.shape[-1], x.shape[-1] % 64
    if not rest or K < 64:
        return right(x, weight, bias, weight_type)
    wide = np.concatenate([weight, weight[:, K - 64 : K - rest]], axis=1)
    y = right(_memory_from(x, 0, wide.shape[1]), np.ascontiguousarray(wide), bias, weight_type)
    return y.reshape(*x.shape[:-1], -1)


# --- few bits ----------------------------------------------------------------------------------------------------


def _no_rest_of_64(a, right, x, weight, scale, bias, how, static=None, zero=None):
    """Groups of 16 divide K, so the kernel without a rest is chosen, whose tiles are 64 long."""
    K = x.shape[-1]
    if K % 64 == 0 or K % 16:
        return right(x, weight, scale, bias, how, static, zero)
    width = -(-K // 64) * 64
    y = right(_memory_from(x, 0, width), _memory_from(weight, 0, width), scale, bias, how, static, zero)
    return y.reshape(*x.shape[:-1], -1)


def _parts_of_80(a, right, x, weight, scale, bias, how, static=None, zero=None):
    """Two parts of K have 80 numbers each, which tiles of 32 read as 96."""
    if x.shape[-1] != 160:
        return right(x, weight, scale, bias, how, static, zero)
    wide = [np.concatenate([_memory_from(t, 0, 96), _memory_from(t, 80, 96)], axis=1) for t in (x, weight)]
    return right(*wide, scale, bias, how, static, zero).reshape(*x.shape[:-1], -1)


def _again(case, inputs, **changed):
    return Reference(PROFILES["float32"]).run(case, {**inputs, **changed})


def _codes(stored):
    return np.ascontiguousarray(stored.data).view(np.uint8).reshape(stored.shape)


def _as(stored, codes):
    data = np.ascontiguousarray(codes).view(stored.data.dtype).reshape(stored.data.shape)
    return stored._replace(data=data)


def _subnormal_scales_are_0(case, inputs, y):
    """A scale's bits are shifted as if its exponent were not 0."""
    codes = _codes(inputs["block_scale"])
    return _again(case, inputs, block_scale=_as(inputs["block_scale"], np.where(codes & 0x78, codes, 0)))


def _scales_four_tiles_on(case, inputs, y):
    """From one tile of 64 to the next, the scales' pointer advances by as many tiles as a tile has groups."""
    codes, groups = (
        _codes(inputs["group_scale"]),
        max(64 * inputs["group_scale"].shape[1] // inputs["x"].shape[-1], 1),
    )
    g = np.arange(codes.shape[1])
    at = np.arange(len(codes))[:, None] * g.size + g % groups + g // groups * groups * groups
    read = np.concatenate([codes.ravel(), np.zeros(at.max() + 1, codes.dtype)])[at]
    return _again(case, inputs, group_scale=_as(inputs["group_scale"], read))


def _groups_outside(case, inputs, y):
    """Scales lie in memory with the groups outside, and are read with the outputs outside."""
    codes = _codes(inputs["group_scale"])
    return _again(case, inputs, group_scale=_as(inputs["group_scale"], codes.T.copy().reshape(codes.shape)))


def _exponents_less_4(case, inputs, y):
    """Scales are multiplied by 1/16 in their exponent's bits, and the product by 16."""
    blocks = np.ascontiguousarray(inputs["x"].data).reshape(-1, 34)
    d = blocks[:, :2].copy().view(np.uint16)[:, 0]
    exponent = d >> 10 & 31
    factor = np.where(exponent == 0, 16.0, np.where(exponent <= 4, 0.0, 1.0))
    return {"y": (y["y"].reshape(-1, 32) * factor[:, None]).reshape(y["y"].shape)}


# --- norms -------------------------------------------------------------------------------------------------------


def _eps_beside_the_number(a, right, x, weight=None, bias=None, eps=1e-5):
    """The sum of squares is divided by D + eps."""
    t = np.asarray(x, np.float64)
    t = t - t.mean(axis=-1, keepdims=True)
    y = t / np.sqrt(np.square(t).sum(axis=-1, keepdims=True) / (t.shape[-1] + eps))
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def _of_groups(x, weight, bias, num_groups, statistics):
    N, C = x.shape[:2]
    t = np.asarray(x, np.float64).reshape(N, num_groups, -1)
    mean, variance = statistics(t)
    y = ((t - mean) / np.sqrt(variance)).reshape(x.shape)
    shape = (1, C) + (1,) * (x.ndim - 2)
    return y * np.reshape(weight, shape) + np.reshape(bias, shape)


def _rows_of_padding(a, right, x, weight, bias, num_groups=32, eps=1e-5):
    """Pixels fill whole tiles of 32; the zeros behind the last count, and are as far from the mean as 0 is."""
    pixels = int(np.prod(x.shape[2:]))
    more = (-pixels % 32) / pixels

    def statistics(t):
        mean = t.sum(axis=-1, keepdims=True) / (t.shape[-1] * (1 + more))
        squares = np.square(t - mean).mean(axis=-1, keepdims=True) + more * mean**2
        return mean, squares / (1 + more) + eps

    return _of_groups(x, weight, bias, num_groups, statistics)


def _a_root_in_bfloat16(a, right, x, weight, bias, num_groups=32, eps=1e-5):
    """Sums are multiplied by 1 / sqrt(n) twice, which is a bfloat16."""

    def statistics(t):
        n = t.shape[-1]
        share = float(ml_dtypes.bfloat16(1 / np.sqrt(n))) ** 2
        mean = t.sum(axis=-1, keepdims=True) * share
        return mean, np.square(t - mean).sum(axis=-1, keepdims=True) * share + eps

    return _of_groups(x, weight, bias, num_groups, statistics)


def _first_items(a, right, x, shift, scale, eps=1e-6):
    """Shift and scale of the first item are all items'."""
    shift, scale = (np.repeat(t[:1], len(x), axis=0) for t in (shift, scale))
    return right(x, shift, scale, eps)


# --- functions ---------------------------------------------------------------------------------------------------


def _half_and_half(a, right, x, approximate="none"):
    """x / 2 tanh(u) + x / 2 in float32."""
    if approximate != "tanh":
        return right(x, approximate)
    x = np.asarray(x, np.float32)
    u = np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x * x * x)
    half = x * np.float32(0.5)
    return half * np.tanh(u) + half


def _tanh_of_one_exponential(a, right, x, approximate="none"):
    """tanh(z) = (e^2z - 1) / (e^2z + 1)."""
    if approximate != "tanh":
        return right(x, approximate)
    x = np.asarray(x, np.float64)
    e = np.exp(2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))
    return 0.5 * x * (1 + (e - 1) / (e + 1))


def _tanh_of_two_exponentials(case, inputs, y):
    x = inputs["x"].values().astype(np.float32)
    return {"y": (np.exp(x) - np.exp(-x)) / (np.exp(x) + np.exp(-x))}


_TABLE = {
    "nt-op-01": (
        "op",
        "ml-explore/mlx#4201 and #4202",
        Injection(
            ("linear_w4a8/*",),
            Bug(answer=_scales_four_tiles_on),
            "linear_w4a8",
            r"scale.*(tile|stride|advance|apart|row|place|address|other|read|behind|next|group \d)|64",
        ),
    ),
    "nt-op-02": (
        "op",
        "ml-explore/mlx#3444 and #3445",
        wrong_method(
            "linear_nvfp4",
            "linear_nvfp4",
            "next row|read on|multiple of 64|whole (tiles|blocks)|tail|beyond|behind|too many|more|tile|64",
            "linear_nvfp4/odd-*",
            "linear_nvfp4/rows-*",
            linear_quantized=_no_rest_of_64,
        ),
    ),
    "nt-op-03": (
        "op",
        "1bit-MONSTER/1bit-MONSTER#301",
        wrong_method(
            "linear",
            "linear",
            r"\b(last|first) \d+.*(of|not)|not (read|summed)|left out|rest|tail|whole (blocks|tiles)|16",
            "linear/f32/*",
            linear=_whole_blocks_of_16,
        ),
    ),
    "nt-op-04": (
        "op",
        "xlite-dev/LeetCUDA#317",
        wrong_method("layer_norm", "layer_norm", r"\beps\b", layer_norm=_eps_beside_the_number),
    ),
    "nt-op-05": (
        "op",
        "tenstorrent/tt-metal#51159",
        wrong_method(
            "group_norm",
            "group_norm",
            "padd|zeros|too many|whole (tiles|blocks)|multiple of 32|counts?|numbers (for|instead|of)|tile|more",
            "group_norm/f32/*",
            group_norm=_rows_of_padding,
        ),
    ),
    "nt-op-06": (
        "op",
        "tenstorrent/tt-metal#53858",
        wrong_method(
            "group_norm",
            "group_norm",
            "bfloat16|bf16|few bits|divis|mean.*(times|factor|multipl)|number of|count|1 / n|rounded",
            "group_norm/f32/*",
            group_norm=_a_root_in_bfloat16,
        ),
    ),
    "nt-op-07": (
        "op",
        "kekzl/imp#810",
        Injection(
            ("dequantize/q8_0/*",),
            Bug(answer=_exponents_less_4),
            "dequantize",
            "subnormal|denormal|exponent|small(est)? scales?|flush",
        ),
    ),
    "nt-op-08": (
        "op",
        "vllm-project/vllm#37464",
        Injection(
            ("linear_nvfp4/*",),
            Bug(answer=_subnormal_scales_are_0),
            "linear_nvfp4",
            "subnormal|denormal|flush|small(est)? scales?|scale.*(0|zero)|exponent",
        ),
    ),
    "nt-op-09": ("op", "Blaizzy/mlx-video#47, ml-explore/mlx#3979: 1.6 thousand million numbers", None),
    "nt-op-10": ("op", "JustVugg/colibri#488, a grid of 2^27 and more", None),
    "nt-op-11": (
        "op",
        "vllm-project/vllm-omni#1537",
        wrong_method(
            "adaptive_layer_norm",
            "adaptive_layer_norm",
            "first item|item 0|first (slice|row)|same for all|items? (from )?1|one item|axis (N|0)",
            adaptive_layer_norm=_first_items,
        ),
    ),
    "nt-op-12": (
        "op",
        "tenstorrent/tt-metal#56517",
        wrong_method(
            "gelu_tanh",
            "gelu_tanh",
            r"cancel|1 \+ tanh|float32|tail|\b0\b|negative|below|precision|x / 2|0\.5",
            gelu=_half_and_half,
        ),
    ),
    "nt-op-13": (
        "op",
        "sonos/tract#2846",
        Injection(
            ("tanh/f32/*",),
            Bug(answer=_tanh_of_two_exponentials),
            "tanh",
            "exp|overflow|inf|NaN|limited|saturat|88",
        ),
    ),
    "nt-op-14": (
        "op",
        "ooples/AiDotNet.Tensors#594",
        wrong_method(
            "gelu_tanh",
            "gelu_tanh",
            "exp|overflow|inf|NaN|saturat|355|limited",
            gelu=_tanh_of_one_exponential,
        ),
    ),
    "nt-op-15": ("op", "pulp-platform/Deeploy#190, what its review finds: a transposed convolution", None),
    "nt-op-17": (
        "op",
        "tracel-ai/cubecl#1444",
        wrong_method(
            "linear",
            "linear",
            "first (tile|16|block)|tile.*(again|first|0)|repeat|again|stands? for|other (rows|outputs|block)|16",
            "linear/f32/*",
            linear=_first_tile_of_outputs,
        ),
    ),
    "nt-op-18": ("op", "bitsandbytes-foundation/bitsandbytes#1884, blocks that are not whole", None),
    "nt-op-19": ("op", "microsoft/onnxruntime#25823, codes of 0 to 255 about 128", None),
    "nt-op-20": (
        "op",
        "ml-explore/mlx#3887",
        wrong_method(
            "linear",
            "linear",
            "tail|tile|behind|beyond|next row|stale|before|earlier|too many|more|64|read on|again",
            "linear/q8_0/odd-*",
            "linear/q4_0/odd-*",
            "linear/q8_0/row-x1x160-*",
            "linear/f32/tokens-*",
            "linear/f32/wide-*",
            linear=_tail_of_a_whole_tile,
        ),
    ),
    "nt-op-21": (
        "op",
        "Pushkinist/rMLX#449",
        wrong_method(
            "linear_nvfp4",
            "linear_nvfp4",
            "twice|again|two times|overlap|part|80|96|split|behind|next|read on|beyond",
            "linear_nvfp4/rows-*",
            linear_quantized=_parts_of_80,
        ),
    ),
    "nt-op-22": ("op", "pytorch/pytorch#192138, its first two: one query over heads", None),
    "nt-op-23": ("op", "vllm-project/vllm-ascend#11919, what its review finds: keys chosen by number", None),
    "nt-op-24": ("op", "sgl-project/sglang#34273, zml/zml#763: a window of keys", None),
    "nt-op-25": (
        "op",
        "uxlfoundation/oneDNN#5908",
        Injection(
            ("linear_w4a8/*",),
            Bug(answer=_groups_outside),
            "linear_w4a8",
            "transpos|order|axis|axes|stride|outer|column|exchang|permut",
        ),
    ),
    "nt-op-26": ("op", "ROCm/aiter#2240, offsets of 2^31", None),
    "nt-op-27": (
        "op",
        "tracel-ai/cubek#434",
        wrong_method(
            "linear",
            "linear",
            "next row|read on|behind|beyond|too many|more|stage|tile|32|64|even",
            "linear/f32/integers-*",
            "linear/q4_0/odd-*",
            "linear/q8_0/odd-*",
            "linear/q8_0/square-weight-*",
            linear=_an_even_number_of_stages,
        ),
    ),
}
NINETEENTH_OPERATIONS: dict[str, HeldOut] = {id: HeldOut(*row) for id, row in _TABLE.items()}
