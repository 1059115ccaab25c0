"""Linear layers as ONNX nodes."""

import numpy as np

from refsd.numerics.quantization import rotated
from refsd.onnx.operations.function import Function


def linear(b, x, weight, bias=None):
    """x: [..., I]; weight: [O, I], as a checkpoint has it -> [..., O]. As torch.onnx: Gemm where x is a matrix."""
    if len(x.shape) == 2 and not b.is_turned(weight):
        return b.node("Gemm", x, weight, bias, transB=1)
    y = b.node("MatMul", x, b.transpose(weight, (1, 0)))
    return y if bias is None else b.node("Add", y, bias)


def _linear_int8(b, x, params):
    """QuantizeLinear, MatMulInteger into int32, both scales: a scale for the tensor, or one for each row."""
    *outer, K = x["x"].shape
    rows, group = b.reshape(x["x"], (-1, K)), params["rotation"]
    if group:
        hadamard = rotated(np.eye(group, dtype=b.dtype), group)
        rows = b.reshape(b.node("MatMul", b.reshape(rows, (-1, group)), b.constant(hadamard)), rows.shape)
    if "x_scale" in x:
        scale = b.reshape(x["x_scale"], ())
    else:
        axes = [1] if params["scales"] == "row" else [0, 1]
        largest = b.node("ReduceMax", b.node("Abs", rows), axes, keepdims=0)
        scale = b.node("Div", largest, 127.0)
        scale = b.node("Where", b.node("Greater", scale, 0.0), scale, b.constant(np.ones((), b.dtype)))
    codes = b.node("QuantizeLinear", rows, scale, b.constant(np.zeros(scale.shape, np.int8)), axis=0)
    weight = b.cast(b.transpose(x["weight"], (1, 0)), np.int8)
    y = b.cast(b.node("MatMulInteger", codes, weight), b.dtype)
    y = b.node("Mul", y, b.reshape(scale, (-1, 1)))
    y = b.node("Mul", y, x["weight_scale"])
    y = y if x.get("bias") is None else b.node("Add", y, x["bias"])
    return b.reshape(y, (*outer, y.shape[1]))


FUNCTIONS: dict[str, Function] = {
    "linear": lambda b, x, params: linear(b, x["x"], x["weight"], x.get("bias")),
    "linear_int8": _linear_int8,
}
