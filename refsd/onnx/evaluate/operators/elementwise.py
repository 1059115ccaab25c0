"""Operators on each element alone: arithmetic, comparison, logic, functions of one number."""

from functools import reduce

import numpy as np
from scipy import special

from refsd.onnx.evaluate.node import Node, operator

_UNARY = {
    "Abs": np.abs, "Neg": np.negative, "Ceil": np.ceil, "Floor": np.floor, "Round": np.rint, "Sqrt": np.sqrt,
    "Reciprocal": np.reciprocal, "Exp": np.exp, "Log": np.log, "Sin": np.sin, "Cos": np.cos, "Tan": np.tan,
    "Asin": np.arcsin, "Acos": np.arccos, "Atan": np.arctan, "Sinh": np.sinh, "Cosh": np.cosh, "Tanh": np.tanh,
    "Asinh": np.arcsinh, "Acosh": np.arccosh, "Atanh": np.arctanh, "Erf": special.erf, "Sigmoid": special.expit,
    "Sign": np.sign, "IsNaN": np.isnan, "Not": np.logical_not, "BitwiseNot": np.bitwise_not,
    "Softplus": lambda x: np.logaddexp(x.dtype.type(0), x), "Softsign": lambda x: x / (1 + np.abs(x)),
    "Relu": lambda x: np.maximum(x, 0), "Identity": lambda x: x,
}  # fmt: skip
_BINARY = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "And": np.logical_and, "Or": np.logical_or,
    "Xor": np.logical_xor, "Equal": np.equal, "Greater": np.greater, "GreaterOrEqual": np.greater_equal,
    "Less": np.less, "LessOrEqual": np.less_equal, "BitwiseAnd": np.bitwise_and, "BitwiseOr": np.bitwise_or,
    "BitwiseXor": np.bitwise_xor,
}  # fmt: skip
_MANY = {"Max": np.maximum, "Min": np.minimum, "Sum": np.add}
_SHIFTS = {"LEFT": np.left_shift, "RIGHT": np.right_shift}


def broadcast(node: Node, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a result that is broadcast, checked against the memory."""
    ndim = max(map(len, shapes))
    whole = [(1,) * (ndim - len(shape)) + shape for shape in shapes]
    sizes = tuple(next((n for n in axis if n != 1), 1) for axis in zip(*whole, strict=True))
    return node.room(sizes)


@operator(*_UNARY)
def unary(node: Node, x):
    return _UNARY[node.op](x)


@operator(*_BINARY)
def binary(node: Node, a, b):
    broadcast(node, a.shape, b.shape)
    return _BINARY[node.op](a, b)


@operator(*_MANY)
def many(node: Node, *xs):
    broadcast(node, *(x.shape for x in xs))
    return reduce(_MANY[node.op], xs)


@operator("Mean")
def mean(node: Node, *xs):
    broadcast(node, *(x.shape for x in xs))
    return reduce(np.add, xs) / len(xs)


@operator("Div")
def div(node: Node, a, b):
    """Integers are divided towards zero."""
    broadcast(node, a.shape, b.shape)
    if a.dtype.kind == "f":
        return a / b
    if not np.all(b):
        raise ZeroDivisionError("an integer divided by zero")
    quotient, rest = np.divmod(a, b)
    return quotient + ((rest != 0) & ((a < 0) != (b < 0))).astype(a.dtype)


@operator("Mod")
def mod(node: Node, a, b):
    broadcast(node, a.shape, b.shape)
    if a.dtype.kind != "f" and not np.all(b):
        raise ZeroDivisionError("an integer divided by zero")
    return np.fmod(a, b) if node.attribute("fmod", 0) else np.mod(a, b)


@operator("Pow")
def power(node: Node, a, b):
    """The result has the type of the base."""
    broadcast(node, a.shape, b.shape)
    if a.dtype.kind in "iu" and b.dtype.kind in "iu" and (b >= 0).all():
        return np.power(a, b.astype(a.dtype))
    return np.power(a.astype(node.rules.dtype), b.astype(node.rules.dtype)).astype(a.dtype)


@operator("BitShift")
def bit_shift(node: Node, a, b):
    broadcast(node, a.shape, b.shape)
    return _SHIFTS[node.attribute("direction")](a, b)


@operator("Where")
def where(node: Node, condition, x, y):
    broadcast(node, condition.shape, x.shape, y.shape)
    return np.where(condition, x, y)


@operator("IsInf")
def is_inf(node: Node, x):
    up, down = node.attribute("detect_positive", 1), node.attribute("detect_negative", 1)
    return np.isinf(x) & ((x > 0) & bool(up) | (x < 0) & bool(down))


@operator("Clip")
def clip(node: Node, x, least=None, most=None):
    """Before version 11 the limits are attributes. Where they cross, the upper one wins."""
    least = node.attribute("min") if least is None else least
    most = node.attribute("max") if most is None else most
    x = x if least is None else np.maximum(x, np.asarray(least, x.dtype))
    return x if most is None else np.minimum(x, np.asarray(most, x.dtype))
