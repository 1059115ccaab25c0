"""An eighteenth fresh set, of operations: from public trackers, drawn before a look at the judge."""

import dataclasses

import ml_dtypes
import numpy as np
from held_out import HeldOut
from injection import Bug, Injection, other_result, wrong_method

from refsd.engines.reference import Reference
from refsd.numerics.profiles import PROFILES

# --- few bits ----------------------------------------------------------------------------------------------------


def _without_tensor_scales(a, right, x, weight, scale, bias, how, static=None, zero=None):
    """A product with one row takes the blocks' scales alone."""
    if len(x.reshape(-1, x.shape[-1])) > 1:
        return right(x, weight, scale, bias, how, static, zero)
    return right(x, weight, np.ones_like(scale), bias, dataclasses.replace(how, scale="none"), None, zero)


def _padded_rows_of_scales(case, inputs, y):
    """Rows of scales are as long as whole fours, and were written one behind the other; behind them lies 1."""
    stored = inputs["block_scale"]
    codes = np.ascontiguousarray(stored.data).view(np.uint8).reshape(stored.shape)
    rows, columns = codes.shape
    wide = -(-columns // 4) * 4
    memory = np.full(rows * wide, 0x38, np.uint8)
    memory[: codes.size] = codes.ravel()
    read = np.ascontiguousarray(memory.reshape(rows, wide)[:, :columns])
    data = read.view(stored.data.dtype).reshape(stored.data.shape)
    return Reference(PROFILES["float32"]).run(case, {**inputs, "block_scale": stored._replace(data=data)})


def _bias_in_codes(case, inputs, y):
    """The bias is a whole number of sx sw, and is added as that number."""
    t = {name: tensor.values().astype(np.float64) for name, tensor in inputs.items()}
    number = np.rint(t["bias"] / (t["x_scale"] * t["weight_scale"]))
    return {"y": (y["y"] + (number - t["bias"])[:, None, None]).astype(y["y"].dtype)}


# --- norms and functions -----------------------------------------------------------------------------------------


def _sum_so_far(a, right, x, scale=1.0, mask=None, sinks=None):
    """256 threads read the sum when those before them have added theirs, and those behind have not."""
    t = np.asarray(x, np.float64) * scale
    e = np.exp(t - t.max(axis=-1, keepdims=True))
    y = np.empty_like(e)
    for first in range(0, e.shape[-1], 256):
        y[..., first : first + 256] = e[..., first : first + 256] / e[..., : first + 256].sum(-1, keepdims=True)
    return y


def _f16(x):
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(x).astype(np.float16)


def _rms_sum_in_half(a, right, x, weight, eps=1e-6):
    t = np.asarray(x, np.float32)
    mean = (_f16(t) * _f16(t)).sum(axis=-1, keepdims=True, dtype=np.float16) / np.float16(t.shape[-1])
    y = t / np.sqrt(mean.astype(np.float32) + np.float32(eps))
    return y if weight is None else y * weight


def _variance_sum_in_half(a, right, x, weight=None, bias=None, eps=1e-5):
    t = np.asarray(x, np.float32)
    t = t - t.mean(axis=-1, keepdims=True)
    variance = (_f16(t) * _f16(t)).sum(axis=-1, keepdims=True, dtype=np.float16) / np.float16(t.shape[-1])
    y = t / np.sqrt(variance.astype(np.float32) + np.float32(eps))
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def _shares_in_half(a, right, x, weight, eps=1e-6):
    """Each x is divided by their number, then multiplied by x, in float16, and so is the sum."""
    t = _f16(x)
    mean = (t * _f16(1 / x.shape[-1]) * t).sum(axis=-1, keepdims=True, dtype=np.float16)
    y = np.asarray(x, np.float32) / np.sqrt(mean.astype(np.float32) + np.float32(eps))
    return y if weight is None else y * weight


def _sum_rounded_first(a, right, x, weight, eps=1e-6):
    """The sum with the residual is rounded to bfloat16 before it is squared."""
    return right(np.asarray(x).astype(ml_dtypes.bfloat16).astype(np.float32), weight, eps)


def _tiles_of_32_columns(a, right, x, weight=None, bias=None, eps=1e-5):
    """Zeros fill the last tile, count among the columns, and are as far from the mean as 0 is."""
    t = np.asarray(x, np.float64)
    D, wide = t.shape[-1], -(-t.shape[-1] // 32) * 32
    mean = t.sum(axis=-1, keepdims=True) / wide
    squares = np.square(t - mean).sum(axis=-1, keepdims=True) + (wide - D) * mean**2
    y = (t - mean) / np.sqrt(squares / wide + eps)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


# --- attention ---------------------------------------------------------------------------------------------------


def _aligned_at_0(a, right, q, k, v, scale=None, mask=None, diagonal=None, sinks=None):
    """Query i sees the keys up to i, as if there were as many of them."""
    return right(q, k, v, scale, mask, None if diagonal is None else 0, sinks)


def _last_tile_of_keys(a, right, q, k, v, *rest, **named):
    """Keys are packed item behind item, and the last tile of 128 is not cut."""
    J = k.shape[1]
    wide = -(-J // 128) * 128

    def read(t):
        memory = np.concatenate([t.reshape(-1, *t.shape[2:]), np.zeros((wide, *t.shape[2:]), t.dtype)])
        return np.stack([memory[b * J : b * J + wide] for b in range(len(t))])

    return right(q, read(k), read(v), *rest, **named)


def _second_tile_dropped(a, right, q, *rest, **named):
    """Of three tiles of 32 queries the numbers 2, 3 and 0 are computed."""
    y = np.array(right(q, *rest, **named))
    y[:, 32:64] = np.random.default_rng(18).standard_normal(y[:, 32:64].shape)
    return y


def _permuted_shape(a, right, q, k, v, *rest, **named):
    """The keys are stored with the heads outside, and read with the strides of tokens outside."""
    k = np.ascontiguousarray(np.asarray(k).swapaxes(1, 2)).reshape(k.shape)
    return right(q, k, v, *rest, **named)


def _items_by_heads(a, right, q, k, v, scale=None, mask=None, diagonal=None, sinks=None):
    """An item's mask begins heads times a mask behind the one before; behind the last lie zeros."""
    if mask is not None and mask.shape[0] > 1 and mask.shape[1] == 1:
        heads = q.shape[2]
        memory = np.concatenate([mask, np.zeros((heads * len(mask), *mask.shape[1:]), mask.dtype)])
        mask = memory[heads * np.arange(len(mask))]
    return right(q, k, v, scale, mask, diagonal, sinks)


def _half_of_each_8(a, right, *told, **named):
    """The loop goes on by 8 channels and adds up 4."""
    y = np.array(right(*told, **named))
    y[..., np.arange(y.shape[-1]) % 8 >= 4] = 0
    return y


_TABLE = {
    "eh-op-01": ("op", "pytorch/executorch#21423, more rows than half the columns", None),
    "eh-op-02": (
        "op",
        "ml-explore/mlx#3550",
        wrong_method(
            "linear_nvfp4",
            "linear_nvfp4",
            r"scale.*(ignored|missing|left out|dropped|not|as if|is 1\b|without|forgotten)|without.*scale",
            "linear_nvfp4/row-*",
            linear_quantized=_without_tensor_scales,
        ),
    ),
    "eh-op-03": ("op", "ml-explore/mlx#3161, a comment: one bit with zero points", None),
    "eh-op-04": (
        "op",
        "xlite-dev/LeetCUDA#251",
        wrong_method(
            "softmax",
            "softmax",
            "sum.*(so far|tile|block|earlier|before|running|partial|256)|(tile|block)s? of 256|rescal",
            "softmax/f32/long-*",
            softmax=_sum_so_far,
        ),
    ),
    "eh-op-05": ("op", "ROCm/rocm-libraries#5240, what its review finds: a softmax of what is not packed", None),
    "eh-op-06": ("op", "pytorch/executorch#21773, a table of zero points of another width", None),
    "eh-op-07": (
        "op",
        "llvm/torch-mlir#4645",
        Injection(
            ("conv2d_int8/given-*",),
            Bug(answer=_bias_in_codes),
            "conv2d_int8",
            "bias.*(scale|divided|times|whole|units|codes|integer|multipl|sum)|scale.*bias",
        ),
    ),
    "eh-op-08": ("op", "flagos-ai/FlagGems#5217, a resize by a factor", None),
    "eh-op-09": (
        "op",
        "vllm-project/vllm-ascend#12820",
        wrong_method(
            "rope",
            "rope",
            "pair|halves|half|neighbour|interleav|adjacent",
            "rope/f32/neighbours-*",
            "rope/f32/flux-*",
            rope=lambda a, right, x, angle: a.rope_halves(x, angle),
        ),
    ),
    "eh-op-10": (
        "op",
        "xlite-dev/LeetCUDA#335",
        wrong_method(
            "norm",
            "norm",
            "overflow|65504|float16|f16|half|infinit",
            "rms_norm/f32/loud-*",
            "layer_norm/f32/loud-*",
            rms_norm=_rms_sum_in_half,
            layer_norm=_variance_sum_in_half,
        ),
    ),
    "eh-op-11": (
        "op",
        "microsoft/onnxruntime#28442",
        wrong_method(
            "rms_norm",
            "rms_norm",
            "float16|f16|half|precision|rounded",
            "rms_norm/*",
            rms_norm=_shares_in_half,
        ),
    ),
    "eh-op-12": (
        "op",
        "vllm-project/vllm#52151",
        wrong_method(
            "rms_norm",
            "rms_norm",
            "bfloat16|bf16|rounded",
            "rms_norm/*",
            rms_norm=_sum_rounded_first,
        ),
    ),
    "eh-op-13": ("op", "tenstorrent/tt-metal#55159, squares beyond float32", None),
    "eh-op-14": ("op", "apple/coreai-models#66, channels that are paired but not turned", None),
    "eh-op-15": (
        "op",
        "tile-ai/tilelang#864, gittensor-ai-lab/sparkinfer#3, intel/sycl-tla#314",
        wrong_method(
            "attention",
            "attention",
            "first (corner|key)|corner|top.left|diagonal|aligned|from the (first|beginning)|offset",
            "attention/f32/last-corner-*",
            attention=_aligned_at_0,
        ),
    ),
    "eh-op-16": (
        "op",
        "vllm-project/flash-attention#180, its review's first",
        wrong_method(
            "attention",
            "attention",
            "next item|other items?|more keys|beyond|behind|read on|tile|whole blocks|too many|128",
            "attention/f32/cross-*",
            attention=_last_tile_of_keys,
        ),
    ),
    "eh-op-17": (
        "op",
        "vllm-project/flash-attention#180, its review's second",
        wrong_method(
            "attention",
            "attention",
            "(not|nothing is) written|unwritten|memory|second tile|tile 1|quer.*32|32.*quer|not computed|left out",
            "attention/f32/causal-b1-l77-*",
            attention=_second_tile_dropped,
        ),
    ),
    "eh-op-18": ("op", "flashinfer-ai/flashinfer#3841, MXFP8", None),
    "eh-op-19": ("op", "vllm-project/vllm#42089, MXFP4 with MXFP8", None),
    "eh-op-20": ("op", "sgl-project/sglang#38028, MXFP8", None),
    "eh-op-21": (
        "op",
        "meta-pytorch/MSLK#339",
        Injection(
            ("linear_nvfp4/odd-*",),
            Bug(answer=_padded_rows_of_scales),
            "linear_nvfp4",
            r"scale.*(row|stride|padd|\b4\b|four|behind|other|next|order|apart)|stride|padd",
        ),
    ),
    "eh-op-22": ("op", "sgl-project/sglang#29275, a scale for each 128 inputs", None),
    "eh-op-23": (
        "op",
        "NVIDIA/TensorRT#4826",
        wrong_method(
            "attention",
            "attention",
            r"\bk\b.*(transpos|order|reshap|stride|permut|heads?|memory|stored)|keys.*(transpos|order|reshap|heads)",
            "attention/f32/self-*",
            "attention/f32/cross-*",
            attention=_permuted_shape,
        ),
    ),
    "eh-op-24": (
        "op",
        "microsoft/onnxruntime#24017",
        wrong_method(
            "attention",
            "attention",
            "mask.*(item|ignored|other|beyond|behind|stride|first|zero|from)",
            "attention/f32/masked-*",
            attention=_items_by_heads,
        ),
    ),
    "eh-op-25": ("op", "openvinotoolkit/openvino#26411, scores beyond float16", None),
    "eh-op-26": (
        "op",
        "PTO-ISA/SuperNPUBench#140",
        wrong_method(
            "rms_norm",
            "rms_norm",
            "weight.*(ignored|missing|left out|not|without)|without.*weight|as if.*weight|weight as",
            "rms_norm/*",
            rms_norm=lambda a, right, x, weight, eps=1e-6: right(x, None, eps),
        ),
    ),
    "eh-op-27": ("op", "TheTom/llama-cpp-turboquant#4, a type that is not packed here", None),
    "eh-op-28": (
        "op",
        "TheTom/turboquant_plus#99",
        wrong_method(
            "attention",
            "attention",
            "(4|four) of (each|every) 8|each 8|every 8|(not|nothing is) written|zero.*(channel|8|half)|"
            r"(channel|half).*(zero|\b0\b|missing)",
            "attention/f32/self-*",
            "attention/f32/cross-*",
            attention=_half_of_each_8,
        ),
    ),
    "eh-op-29": ("op", "TheTom/llama-cpp-turboquant#43, a rotation at random", None),
    "eh-op-30": ("op", "ikawrakow/ik_llama.cpp#14, IQ3_K to IQ5_K", None),
    "eh-op-31": ("op", "ggml-org/llama.cpp#9279, rows of one block", None),
    "eh-op-32": (
        "op",
        "1bit-MONSTER/1bit-MONSTER#891",
        other_result(
            "dequantize", "zeros|all 0|is 0|nothing|(not|never) written|empty", lambda case, x, y: 0 * y
        )._replace(cases=("dequantize/iq1_s/*",)),
    ),
    "eh-op-33": (
        "op",
        "tenstorrent/tt-metal#48856",
        wrong_method(
            "layer_norm",
            "layer_norm",
            "padd|zeros|too many|whole (tiles|blocks)|multiple of 32|96|counts?|numbers (for|instead|of)|tile",
            "layer_norm/f32/awkward-*",
            "layer_norm/f32/loud-*",
            "layer_norm/f32/mean-*",
            layer_norm=_tiles_of_32_columns,
        ),
    ),
}
EIGHTEENTH_OPERATIONS: dict[str, HeldOut] = {id: HeldOut(*row) for id, row in _TABLE.items()}
