"""Convolutions and their patches as ONNX nodes."""

import numpy as np

from refsd.onnx.operations.function import Function
from refsd.onnx.operations.products import around, in_codes, scale_and_zero, unsigned, zero_of_weight


def _each(number, axes: int) -> list[int]:
    return [number] * axes if isinstance(number, int) else list(number)


def pads(padding) -> list[int]:
    """(top, bottom, left, right, ...) -> before every axis, then behind every axis"""
    return [*padding[0::2], *padding[1::2]]


def convolve(b, x, weight, bias, stride=1, padding=(0, 0, 0, 0), dilation=1, groups=1):
    """Convolve with as many axes as the weight has. padding: before and behind each axis in turn"""
    axes = len(weight.shape) - 2
    return b.node(
        "Conv",
        x,
        weight,
        bias,
        kernel_shape=list(weight.shape[2:]),
        strides=_each(stride, axes),
        dilations=_each(dilation, axes),
        pads=pads(padding),
        group=groups,
    )


def _conv(b, x, params):
    return convolve(b, x["x"], x["weight"], x.get("bias"), **params)


def _im2col(b, x, params):
    """ONNX has no im2col that gives columns: pad, then gather pixels."""
    (R, S), (down, across) = params["kernel"], _each(params["stride"], 2)
    rows, columns = _each(params["dilation"], 2)
    top, bottom, left, right = params["padding"]
    padded = b.node("Pad", x["x"], [0, 0, top, left, 0, 0, bottom, right])
    N, C, H, W = padded.shape
    p = np.arange(0, H - (R - 1) * rows, down)[:, None] + np.arange(R)[:, None, None, None] * rows
    q = np.arange(0, W - (S - 1) * columns, across) + np.arange(S)[:, None, None] * columns
    pixels = (p * W + q).astype(np.int64)  # [R, S, P, Q]
    y = b.node("Gather", b.reshape(padded, (N, C, H * W)), b.constant(pixels.reshape(-1)), axis=2)
    return b.reshape(y, (N, C * R * S, -1))


def _conv2d_int8(b, x, params):
    """QuantizeLinear to unsigned codes, around 128 or their zero point; ConvInteger; both scales in float.

    Where onnxruntime's tool writes the graph, DynamicQuantizeLinear gives the codes, and filters stay signed.
    """
    if b.quantized and "x_scale" in x:  # QLinearConv
        scale, zero = scale_and_zero(b, x["x"], x, params)
        own = zero_of_weight(b, x)
        weight = b.node("DequantizeLinear", x["weight"], b.reshape(x["weight_scale"], own.shape), own, axis=0)
        y = convolve(b, around(b, x["x"], scale, zero), weight, x.get("bias"), params["stride"], params["padding"])
        return in_codes(b, y, x)
    middle = b.constant(np.array(128, np.uint8))
    weight, own = x["weight"], x.get("weight_zero")
    if b.quantized:
        codes, scale, zero = b.nodes(3, "DynamicQuantizeLinear", x["x"])
    else:
        scale, zero = scale_and_zero(b, x["x"], x, params)
        zero = zero if params["zero_point"] else middle
        codes = b.node("QuantizeLinear", x["x"], scale, zero)
        weight, own = unsigned(b, weight, own)
    sides = {"pads": pads(params["padding"])}
    sides |= {"kernel_shape": list(weight.shape[2:]), "strides": _each(params["stride"], 2)}
    if own is None or own.shape in ((), (1,)):
        y = b.node("ConvInteger", codes, weight, zero, own if own is None else b.reshape(own, ()), **sides)
    else:  # onnxruntime has one zero point for all filters
        ones = b.constant(np.ones((1, *weight.shape[1:]), np.uint8))
        sums = b.node("ConvInteger", codes, ones, zero, **sides)
        less = b.node("Mul", sums, b.cast(b.reshape(own, (-1, 1, 1)), np.int32))
        y = b.node("Sub", b.node("ConvInteger", codes, weight, zero, **sides), less)
    y = b.cast(y, b.dtype)
    y = b.node("Mul", y, b.node("Mul", scale, b.reshape(x["weight_scale"], (-1, 1, 1))))
    return in_codes(b, y if x.get("bias") is None else b.node("Add", y, b.reshape(x["bias"], (-1, 1, 1))), x)


FUNCTIONS: dict[str, Function] = {
    "conv2d": _conv,
    "conv2d_int8": _conv2d_int8,
    "conv3d": _conv,
    "im2col": _im2col,
}
