"""Operators that make values, and those that change their type.

A Cast to a float of 16 bits or fewer rounds, because the graph says so; a Cast to float or double does not, because
the evaluation stands for any precision that wide. Under the rule `exact`, casts to float16 and bfloat16 do not
round either: then only quantizations do.
"""

import numpy as np
from onnx import TensorProto

from refsd.numerics.errors import BadInput
from refsd.onnx.evaluate.element_types import ELEMENT_TYPES, QUANTIZED, WIDE, number_of, rounded
from refsd.onnx.evaluate.node import Node, operator

_LISTS = {
    "value_float": (TensorProto.FLOAT, 0), "value_floats": (TensorProto.FLOAT, 1),
    "value_int": (TensorProto.INT64, 0), "value_ints": (TensorProto.INT64, 1),
}  # fmt: skip


@operator("Constant")
def constant(node: Node):
    value = node.attribute("value")
    if value is not None:
        node.output_type = value.number
        return value.array
    for name, (number, _) in _LISTS.items():
        if node.attribute(name) is not None:
            node.output_type = number
            return np.array(node.attribute(name), ELEMENT_TYPES[number].held or node.rules.dtype)
    raise BadInput("a constant without numbers")


@operator("ConstantOfShape")
def constant_of_shape(node: Node, shape):
    value = node.attribute("value")
    if value is None:
        node.output_type = TensorProto.FLOAT
        return np.zeros(node.room(shape), node.rules.dtype)
    node.output_type = value.number
    return np.full(node.room(shape, value.array.itemsize), value.array.reshape(()))


@operator("Range")
def range_(node: Node, start, limit, delta):
    start, limit, delta = (one.reshape(()) for one in (start, limit, delta))
    if not delta or not np.isfinite([start, limit, delta]).all():
        raise BadInput(f"a range from {start} to {limit} by {delta}")
    count = max(0, int(np.ceil((float(limit) - float(start)) / float(delta))))
    if start.dtype.kind != "f":
        count = max(0, -((int(start) - int(limit)) // int(delta)))
    node.room((count,))
    return (start + np.arange(count, dtype=start.dtype) * delta).astype(start.dtype)


@operator("EyeLike")
def eye_like(node: Node, x):
    number = node.attribute("dtype", node.types[0])
    node.output_type = number
    return np.eye(*x.shape, k=node.attribute("k", 0), dtype=ELEMENT_TYPES[number].held or node.rules.dtype)


@operator("OneHot")
def one_hot(node: Node, indices, depth, values):
    depth = int(depth.reshape(()))
    node.output_type = node.types[2]
    axis = node.axis(node.attribute("axis", -1), indices.ndim + 1)
    node.room((*indices.shape, depth))
    hot = (indices.astype(np.int64)[..., None] % depth == np.arange(depth)) & (
        (indices >= -depth) & (indices < depth)
    )[..., None]
    return np.moveaxis(np.where(hot, values[1], values[0]), -1, axis)


@operator("Cast")
def cast(node: Node, x):
    return _cast(node, x, node.attribute("to"))


@operator("CastLike", since=15)
def cast_like(node: Node, x, like):
    return _cast(node, x, node.types[1])


def _cast(node: Node, x, number: int):
    if number not in ELEMENT_TYPES:
        raise BadInput(f"a cast to element type {number}, which holds no numbers")
    kind = ELEMENT_TYPES[number]
    node.output_type = number
    if kind.held is not None:
        if kind.bits < 8:
            span, low = 2**kind.bits, 0 if kind.held.kind == "u" else -(2 ** (kind.bits - 1))
            return ((x.astype(np.int64) - low) % span + low).astype(kind.held)
        if x.dtype.kind == "f" and kind.held.kind in "iu":
            return (
                x.astype(np.int64).astype(kind.held)
                if kind.held.kind == "i" or (x < 0).any()
                else x.astype(kind.held)
            )
        return x.astype(kind.held)
    y = x.astype(node.rules.dtype)
    if number in WIDE or (node.rules.exact and number not in QUANTIZED):
        return y
    return rounded(y, number, bool(node.attribute("saturate", 1)))


@operator("BitCast", since=26)
def bit_cast(node: Node, x):
    """Integers of one width as one another; the bits of floats are not kept here."""
    number = node.attribute("to")
    held = ELEMENT_TYPES[number].held
    if held is None or x.dtype.kind == "f":
        raise BadInput("the bits of a float: refsd holds floats in float64")
    node.output_type = number_of(held)
    return x.view(held)
