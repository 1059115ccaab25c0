"""A tenth fresh set, of operations: from public trackers, drawn before a look at the judge.

The names of the known bugs of pooling, of unit lengths and of NVFP4's product came into view after the bugs there
had been chosen.
"""

from dataclasses import replace

import numpy as np
from held_out import HeldOut
from injection import other_result, wrong_method

from refsd.engines.reference import Reference
from refsd.numerics.profiles import FLOAT32
from refsd.numerics.tensor import StoredTensor

# --- pictures, norms and activations -----------------------------------------------------------------------------


def _strides_not_read(a, right, x, weight, bias, *rest, **named):
    """Picture and filters lie with channels last, and are read as if channels came first; so is the answer."""
    x, weight = (np.asarray(t).transpose(0, 2, 3, 1).reshape(t.shape) for t in (x, weight))
    y = np.asarray(right(np.ascontiguousarray(x), np.ascontiguousarray(weight), bias, *rest, **named))
    N, K, P, Q = y.shape
    return y.reshape(N, P, Q, K).transpose(0, 3, 1, 2)


def _eps_of_the_square(a, right, x, eps=1e-12):
    """The sum of squares is at least eps, not its root."""
    x = np.asarray(x, np.float64)
    return x / np.sqrt(np.maximum(np.square(x).sum(-1, keepdims=True), eps))


def _zeros_fill_windows(case, inputs, y):
    """Windows are filled up to a multiple of 4 for a faster loop, with zeros and not with -inf."""
    return np.maximum(y, 0) if np.prod(case.params["kernel_size"]) % 4 else y


def _ratio_of_exponentials(case, inputs, y):
    """tanh(z) is (exp(2 z) - 1) / (exp(2 z) + 1) in float32."""
    x = inputs["x"].values().astype(np.float32)
    with np.errstate(all="ignore"):
        power = np.exp(np.float32(2 * np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x * x * x))
        return (x / 2 * (1 + (power - 1) / (power + 1))).astype(y.dtype)


# --- attention ---------------------------------------------------------------------------------------------------


def _first_head_of_keys(a, right, q, k, v, *rest, **named):
    """Every query head reads keys and values of head 0."""
    k, v = (np.repeat(np.asarray(t)[:, :, :1], t.shape[2], axis=2) for t in (k, v))
    return right(q, k, v, *rest, **named)


# --- products of few bits ----------------------------------------------------------------------------------------


def _scales_in_squares(case, inputs, y):
    """Scales were written for another kernel: every square of 4 rows and 4 blocks is transposed."""
    scale = inputs["block_scale"]
    bits = scale.data.reshape(scale.shape)
    kept, rows, blocks = bits.copy(), len(bits) // 4 * 4, bits.shape[1] // 4 * 4
    squares = bits[:rows, :blocks].reshape(rows // 4, 4, blocks // 4, 4)
    kept[:rows, :blocks] = squares.transpose(0, 3, 2, 1).reshape(rows, blocks)
    own = StoredTensor(scale.type, scale.shape, kept)
    return Reference(FLOAT32).run(case, {**inputs, "block_scale": own})["y"].astype(y.dtype)


def _half_of_the_range(a, right, x, weight, scale, bias, how, static=None, zero=None):
    """The largest number of another device's 8-bit floats, 224, stands for 448."""
    return right(
        x, weight, scale, bias, replace(how, largest=224.0) if how.type == "f8_e4m3" else how, static, zero
    )


_TABLE = {
    "d-conv-01": (
        "op",
        "pytorch/executorch#22951",
        wrong_method("conv2d", "conv2d", "layout|order|channels last|NHWC|memory|stride", conv2d=_strides_not_read),
    ),
    "d-norm-01": (
        "op",
        "ggml-org/llama.cpp#20493",
        wrong_method("l2_norm", "l2_norm", "eps", l2_norm=_eps_of_the_square),
    ),
    "d-pool-01": (
        "op",
        "tinygrad/tinygrad#17895",
        other_result("max_pool2d", "zeros fill|at least 0|below 0|negative|relu|max", _zeros_fill_windows),
    ),
    "d-act-01": (
        "op",
        "intel/llm-scaler#484",
        other_result("gelu_tanh", "overflow|NaN|not finite|exp", _ratio_of_exponentials),
    ),
    "d-att-01": (
        "op",
        "tenstorrent/tt-metal#57366",
        wrong_method("attention", "attention", "head", attention=_first_head_of_keys),
    ),
    "d-q-01": (
        "op",
        "vllm-project/vllm#50084",
        other_result(
            "linear_nvfp4", "scales?.*(order|transpos|swizzl|tile|square|elsewhere|other)", _scales_in_squares
        ),
    ),
    "d-q-02": (
        "op",
        "sgl-project/sglang#30900",
        wrong_method("linear_fp8", "linear_fp8", "224|largest|half|range", linear_quantized=_half_of_the_range),
    ),
}
TENTH_OPERATIONS = {id: HeldOut(*row) for id, row in _TABLE.items()}
