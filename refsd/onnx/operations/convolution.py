"""Convolutions and their patches as ONNX nodes."""

import numpy as np

from refsd.onnx.operations.function import Function


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
    """QuantizeLinear to unsigned codes around 128, which ConvInteger takes; both scales in float.

    The filters' codes are unsigned, too: without VNNI onnxruntime adds products of signed ones up in 16 bits.
    """
    if "x_scale" in x:
        scale = b.reshape(x["x_scale"], ())
    else:
        largest = b.node("ReduceMax", b.node("Abs", x["x"]), [0, 1, 2, 3], keepdims=0)
        scale = b.node("Div", largest, 127.0)
        scale = b.node("Where", b.node("Greater", scale, 0.0), scale, b.constant(np.ones((), b.dtype)))
    zero = b.constant(np.array(128, np.uint8))
    codes = b.node("QuantizeLinear", x["x"], scale, zero)
    weight = b.cast(b.node("Add", b.cast(x["weight"], b.dtype), 128.0), np.uint8)
    sides = {"pads": pads(params["padding"])}
    sides |= {"kernel_shape": list(weight.shape[2:]), "strides": _each(params["stride"], 2)}
    y = b.cast(b.node("ConvInteger", codes, weight, zero, zero, **sides), b.dtype)
    y = b.node("Mul", y, b.node("Mul", scale, b.reshape(x["weight_scale"], (-1, 1, 1))))
    return y if x.get("bias") is None else b.node("Add", y, b.reshape(x["bias"], (-1, 1, 1)))


FUNCTIONS: dict[str, Function] = {
    "conv2d": _conv,
    "conv2d_int8": _conv2d_int8,
    "conv3d": _conv,
    "im2col": _im2col,
}
