"""Quantisation: a scale for a tensor, for each slice of an axis, or for each block of an axis."""

import numpy as np
from onnx import TensorProto

from refsd.numerics.errors import BadInput
from refsd.onnx.evaluate.element_types import ELEMENT_TYPES, rounded
from refsd.onnx.evaluate.node import Node, operator


def _spread(node: Node, scale, x):
    """Broadcast a scale or a zero point to the shape of x."""
    if scale.size == 1 and scale.ndim <= 1:
        return scale.reshape(())
    axis = node.axis(node.attribute("axis", 1), x.ndim)
    block = node.attribute("block_size", 0)
    if not block:
        if scale.shape != (x.shape[axis],):
            raise BadInput(f"scales {list(scale.shape)} for axis {axis} of {list(x.shape)}")
        return scale.reshape((-1,) + (1,) * (x.ndim - 1 - axis))
    if block < 0 or scale.ndim != x.ndim or scale.shape[axis] != -(-x.shape[axis] // block):
        raise BadInput(f"scales {list(scale.shape)} for blocks of {block} on axis {axis} of {list(x.shape)}")
    node.room(x.shape)
    return np.take(np.repeat(scale, min(block, x.shape[axis]), axis), np.arange(x.shape[axis]), axis)


@operator("DequantizeLinear", since=10)
def dequantize_linear(node: Node, x, scale, zero=None):
    """(x - zero) scale"""
    node.output_type = node.attribute("output_dtype", 0) or node.types[1]
    wide = x.astype(node.rules.dtype)
    if zero is not None:
        wide = wide - _spread(node, zero, x).astype(node.rules.dtype)
    return wide * _spread(node, scale, x)


@operator("QuantizeLinear", since=10)
def quantize_linear(node: Node, x, scale, zero=None):
    """round(x / scale) + zero, half to even, clamped to the type of zero (or output_dtype, or uint8)."""
    number = node.attribute("output_dtype", 0) or (node.types[2] if zero is not None else TensorProto.UINT8)
    kind = ELEMENT_TYPES[number]
    node.output_type = number
    y = x.astype(node.rules.dtype) / _spread(node, scale, x)
    if kind.held is None:
        return rounded(y, number, bool(node.attribute("saturate", 1)))
    y = np.rint(y) + (0 if zero is None else _spread(node, zero, x).astype(node.rules.dtype))
    least = 0 if kind.held.kind == "u" else -(2 ** (kind.bits - 1))
    return np.clip(y, least, least + 2**kind.bits - 1).astype(kind.held)
