"""A twenty-first fresh set, of products of few bits: from public trackers, drawn before a look at the judge."""

from dataclasses import replace

import ml_dtypes
import numpy as np
from held_out import HeldOut
from injection import Bug, Injection, wrong_method

from refsd.kernels.quant.grouped import TABLES
from refsd.numerics.profiles import NVFP4
from refsd.numerics.quantization import quantize


def _ties_away(a, right, x, weight, scale, bias, how, static=None, zero=None):
    return right(x, weight, scale, bias, replace(how, rounding="away"), static, zero)


def _bias_of(inputs):
    return inputs["bias"].values() if "bias" in inputs else 0


def _power_that_is_nearest(case, inputs, y):
    """An exponent is log2(max |x| / 448), rounded; numbers beyond are limited."""
    x, codes = inputs["x"].values(), inputs["weight"].values().astype(np.float64)
    blocks = np.asarray(x, np.float64).reshape(*x.shape[:-1], -1, 32)
    power = np.exp2(np.rint(np.log2(np.abs(blocks).max(axis=-1, keepdims=True) / 448)))
    few = np.clip(blocks / power, -448, 448).astype(np.float32).astype(ml_dtypes.float8_e4m3fn)
    weight = codes * np.repeat(np.exp2(inputs["block_scale"].values().astype(np.float64) - 127), 32, axis=1)
    return {"y": (few.astype(np.float64) * power).reshape(x.shape) @ weight.T + _bias_of(inputs)}


def _squares(inputs):
    """Codes and scales of 128 columns each: of activations, of the weight."""
    x, codes = np.asarray(inputs["x"].values(), np.float32), inputs["weight"].values().astype(np.float64)
    scales = inputs["block_scale"].values().astype(np.float64)[np.arange(len(codes)) // 128]
    for n, start in enumerate(range(0, x.shape[-1], 128)):
        block = x[..., start : start + 128]
        scale = np.abs(block).max(axis=-1, keepdims=True) / np.float32(448)
        few = (block / np.where(scale, scale, 1)).astype(ml_dtypes.float8_e4m3fn).astype(np.float64)
        yield few @ codes[:, start : start + 128].T, scale.astype(np.float64), scales[:, n]


def _last_block_not_scaled(case, inputs, y):
    """What lies beyond the last whole block of 128 columns is added as codes."""
    whole = inputs["x"].shape[-1] // 128
    sums = (p * s * w if n < whole else p for n, (p, s, w) in enumerate(_squares(inputs)))
    return {"y": sum(sums) + _bias_of(inputs)}


def _scales_of_the_first_slice(case, inputs, y):
    """K is cut into slices of a block each; the pointers to scales are those of the first."""
    squares = list(_squares(inputs))
    return {"y": sum(p for p, _, _ in squares) * squares[0][1] * squares[0][2] + _bias_of(inputs)}


def _scale_in_bfloat16(case, inputs, y):
    """max |x| / 127 is bfloat16: for the codes, and for the product."""
    x, codes = np.asarray(inputs["x"].values(), np.float32), inputs["weight"].values().astype(np.float64)
    scale = (np.abs(x).max(axis=-1, keepdims=True) / np.float32(127)).astype(ml_dtypes.bfloat16)
    few = np.clip(np.rint(x / scale.astype(np.float32)), -127, 127).astype(np.float64)
    return {"y": few @ codes.T * scale.astype(np.float64) * inputs["weight_scale"].values() + _bias_of(inputs)}


def _one_scale_of_both(case, inputs, y):
    """The tensor's scale is multiplied into those of blocks, which are E4M3 again."""
    q = quantize(
        np.asarray(inputs["x"].values(), np.float32),
        NVFP4,
        lambda t: t,
        inputs["x_scale"].values() if "x_scale" in inputs else None,
    )
    data = np.asarray(inputs["weight"].values()).astype(np.uint8)
    codes = TABLES["nvfp4"][np.stack([data >> 4, data & 15], axis=-1).reshape(len(data), -1)].astype(np.float64)
    scale = inputs["block_scale"].values().astype(np.float32) * inputs["weight_scale"].values()
    few = scale.astype(ml_dtypes.float8_e4m3fn).astype(np.float64)
    sums = q.values.astype(np.float64) @ (codes * np.repeat(few, 16, axis=1)).T
    return {"y": sums * q.scale + _bias_of(inputs)}


_TABLE = {
    "to-op-10": (
        "op",
        "ROCm/aiter#3992",
        wrong_method("linear_mxfp4", "linear_mxfp4", "tie|away|half|even", linear_quantized=_ties_away),
    ),
    "to-op-11": (
        "op",
        "ml-explore/mlx#4353",
        Injection(
            ("linear_mxfp8/tokens-*", "linear_mxfp8/batch-*", "linear_mxfp8/row-*", "linear_mxfp8/outliers-*"),
            Bug(answer=_power_that_is_nearest),
            "linear_mxfp8",
            "nearest|power|round|clip|limit|saturat|exponent",
        ),
    ),
    "to-op-13": (
        "op",
        "pytorch/FBGEMM#6159 and #6160",
        Injection(
            ("linear_fp8_blocks/rows-*", "linear_fp8_blocks/outliers-*"),
            Bug(answer=_last_block_not_scaled),
            "linear_fp8_blocks",
            "(last|tail|partial|rest|32 columns|128).*(scale|codes)|scales?.*(last|tail|partial|rest|beyond|128)",
        ),
    ),
    "to-op-14": (
        "op",
        "pytorch/ao#4326",
        Injection(
            ("linear_int8/tokens-x77*", "linear_int8/outliers-*", "linear_int8/positive-*"),
            Bug(answer=_scale_in_bfloat16),
            "linear_int8",
            "bf16|bfloat16|8 bits of|scale.*(round|half|precision|fewer)",
        ),
    ),
    "to-op-20": (
        "op",
        "mlx-node/mlx-node#120, its second",
        Injection(
            ("linear_nvfp4/*",),
            Bug(answer=_one_scale_of_both),
            "linear_nvfp4",
            "tensor'?s? scale|weight'?s scales?|fold|underflow|subnormal|scales?.*(E4M3|round|0|small|lost)|flush",
        ),
    ),
    "to-op-21": (
        "op",
        "NVIDIA/cutlass#3537 and #3615",
        Injection(
            ("linear_fp8_blocks/batch-*", "linear_fp8_blocks/tokens-*", "linear_fp8_blocks/row-*"),
            Bug(answer=_scales_of_the_first_slice),
            "linear_fp8_blocks",
            "first (block|slice|square)|block 0|same scales?|scales? of the first|slice|split",
        ),
    ),
    "to-op-27": ("op", "ROCm/FlyDSL#590, floats of six bits", None),
    "to-op-29": (
        "op",
        "uxlfoundation/oneDNN#5879, what its review finds: a code of -128 that no own scale makes",
        None,
    ),
}
TWENTY_FIRST_PRODUCTS: dict[str, HeldOut] = {id: HeldOut(*row) for id, row in _TABLE.items()}
