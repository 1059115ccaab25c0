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
    """QuantizeLinear, MatMulInteger into int32, both scales: a scale for the tensor, or one for each row.

    Beside unsigned activations the weight's codes are unsigned, too (`unsigned`).
    """
    if b.quantized:
        return _quantized(b, x, params)
    *outer, K = x["x"].shape
    rows, group = b.reshape(x["x"], (-1, K)), params["rotation"]
    if group:
        hadamard = rotated(np.eye(group, dtype=b.dtype), group)
        rows = b.reshape(b.node("MatMul", b.reshape(rows, (-1, group)), b.constant(hadamard)), rows.shape)
    scale, zero = scale_and_zero(b, rows, x, params)
    codes = b.node("QuantizeLinear", rows, scale, zero, axis=0)
    weight, own = b.transpose(x["weight"], (1, 0)), zero_of_weight(b, x) if "weight_zero" in x else None
    if params["zero_point"]:
        weight, own = unsigned(b, weight, own)
    if params["zero_point"] and zero.shape:  # onnxruntime's MatMulInteger has no zero point of each row
        wide = b.cast(weight, np.int32)
        wide = wide if own is None else b.node("Sub", wide, b.cast(own, np.int32))
        sums = b.node("ReduceSum", wide, [0], keepdims=1)
        less = b.node("Mul", b.cast(b.reshape(zero, (-1, 1)), np.int32), sums)
        none = b.constant(np.zeros((), np.uint8))  # OpenVINO wants one beside that of the weight
        y = b.node("Sub", b.node("MatMulInteger", codes, weight, none, own), less)
    else:
        y = b.node("MatMulInteger", codes, weight, zero if params["zero_point"] else None, own)
    y = b.node("Mul", b.cast(y, b.dtype), b.reshape(scale, (-1, 1)))
    y = b.node("Mul", y, x["weight_scale"])
    y = y if x.get("bias") is None else b.node("Add", y, x["bias"])
    return in_codes(b, b.reshape(y, (*outer, y.shape[1])), x)


def in_codes(b, y, x):
    """A result in 8 bits, if there is a scale for it."""
    if "y_scale" not in x:
        return y
    zero = b.reshape(x["y_zero"], ()) if "y_zero" in x else b.constant(np.zeros((), np.int8))
    return around(b, y, b.reshape(x["y_scale"], ()), zero)


def around(b, x, scale, zero):
    return b.node("DequantizeLinear", b.node("QuantizeLinear", x, scale, zero), scale, zero)


def unsigned(b, codes, zero):
    """Return codes and their zero point, None for 0, as uint8: int8's are 128 more.

    Without VNNI onnxruntime adds products of unsigned and signed codes up in 16 bits.
    """
    if codes.dtype == np.uint8:
        return codes, zero
    higher = lambda t: b.cast(b.node("Add", b.cast(t, b.dtype), 128.0), np.uint8)
    return higher(codes), b.constant(np.array(128, np.uint8)) if zero is None else higher(zero)


def scale_and_zero(b, rows, x, params):
    """The scale and the zero point of all numbers, or [M] of each row."""
    kind = np.uint8 if params["zero_point"] else np.int8
    if "x_scale" in x:
        zero = b.reshape(x["x_zero"], ()) if "x_zero" in x else b.constant(np.zeros((), kind))
        return b.reshape(x["x_scale"], ()), zero
    axes = [1] if params.get("scales") == "row" else [*range(len(rows.shape))]
    if params["zero_point"]:
        most, least = (b.node(f"Reduce{end}", rows, axes, keepdims=0) for end in ("Max", "Min"))
        least = b.node("Min", least, 0.0)
        scale = b.node("Div", b.node("Sub", b.node("Max", most, 0.0), least), 255.0)
    else:
        scale = b.node("Div", b.node("ReduceMax", b.node("Abs", rows), axes, keepdims=0), 127.0)
    scale = b.node("Where", b.node("Greater", scale, 0.0), scale, b.constant(np.ones((), b.dtype)))
    if not params["zero_point"]:
        return scale, b.constant(np.zeros(scale.shape, np.int8))
    return scale, b.cast(b.node("Round", b.node("Div", b.node("Neg", least), scale)), np.uint8)


def zero_of_weight(b, x):
    """Scalar or [O], as many as scales."""
    many = () if x["weight_scale"].shape == (1,) else x["weight_scale"].shape
    zero = x.get("weight_zero")
    return b.constant(np.zeros(many, x["weight"].dtype)) if zero is None else b.reshape(zero, many)


def _quantized(b, x, params):
    """As tools write it that quantise for onnxruntime.

    With a given scale QuantizeLinear and DequantizeLinear stand around a product of floats; otherwise
    DynamicQuantizeLinear leads to MatMulInteger.
    """
    weight, own = b.transpose(x["weight"], (1, 0)), zero_of_weight(b, x)
    factor = b.reshape(x["weight_scale"], own.shape)
    if "x_scale" in x:
        scale, zero = scale_and_zero(b, x["x"], x, params)
        y = b.node(
            "MatMul", around(b, x["x"], scale, zero), b.node("DequantizeLinear", weight, factor, own, axis=1)
        )
    else:
        codes, scale, zero = b.nodes(3, "DynamicQuantizeLinear", x["x"])
        y = b.cast(b.node("MatMulInteger", codes, weight, zero, own), b.dtype)
        y = b.node("Mul", y, b.node("Mul", scale, factor))
    return in_codes(b, y if x.get("bias") is None else b.node("Add", y, x["bias"]), x)


def _of_weight(b, x, params):
    return linear(b, x["x"], x["weight"], x.get("bias"))


FUNCTIONS: dict[str, Function] = {
    "linear": _of_weight,
    "linear_w4a16": _of_weight,  # its weight is expanded before (case_model)
    "linear_int8": _linear_int8,
}
