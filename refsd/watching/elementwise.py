"""Elementwise operations: NumPy in float64, and how far an honest one in float32 may be from it.

A number that the output's dtype does not hold (a Python scalar, a wider tensor, a large integer) may be rounded
before it is used: the difference that this makes is allowed.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from refsd.golden.bounds import FUNCTION
from refsd.numerics.tensor import SCALAR_TYPES
from refsd.watching.calls import Call, Expected, NotJudged, expected, values, wide

# (u, y, inputs) -> the error of computing y, before it is rounded to its dtype
Error = Callable[..., Any]


class Elementwise(NamedTuple):
    """names: of the arguments; function: of their values; error: None: exact but for the output's rounding"""

    names: tuple[str, ...]
    function: Callable[..., Any]
    error: Error | None = None


def _relative(times: float) -> Error:
    return lambda u, y, *x: times * u * np.abs(y)


def _absolute(times: float) -> Error:
    return lambda u, y, *x: times * u


_ONCE, _LIBRARY = _relative(1), _relative(FUNCTION)


def _sum_error(u, y, a, b, alpha):
    return u * np.abs(y) + (0 if np.all(alpha == 1) else u * np.abs(alpha * b))


def _product_error(u, y, a, b):
    """Of complex numbers, each part is a sum of two products."""
    return u * np.abs(y) if not np.iscomplexobj(y) else 4 * u * np.abs(a) * np.abs(b)


def _power(a, b):
    return np.power(a, b) if np.asarray(a).dtype.kind in "fc" or np.asarray(b).dtype.kind != "i" else a**b


def _power_error(u, y, a, b):
    """Of a square one rounding; else a library's, whose logarithm is multiplied by the exponent."""
    if np.all(np.equal(b, 2)):
        return u * np.abs(y)
    return 2 * FUNCTION * u * np.abs(y)


def _clamp(x, low, high):
    y = x if low is None else np.where(np.isnan(x), x, np.maximum(x, low))
    return y if high is None else np.where(np.isnan(y), y, np.minimum(y, high))


def _divide(a, b, mode=None):
    if mode is None:
        return np.true_divide(a, b)
    if np.result_type(a, b).kind == "f":
        raise NotJudged("a quotient rounded to a whole number")
    return np.floor_divide(a, b) if mode == "floor" else np.trunc(np.true_divide(a, b))


def _softplus(x, beta, threshold):
    with np.errstate(over="ignore"):
        return np.where(x * beta > threshold, x, np.log1p(np.exp(x * beta)) / beta)


def _softplus_error(u, y, *x):
    return 2 * FUNCTION * u * (1 + np.abs(y))


def _erf(x):
    from scipy.special import erf

    return erf(x)


_X = ("self",)
_TWO = ("self", "other")

ELEMENTWISE: dict[str, Elementwise] = {
    "add": Elementwise((*_TWO, "alpha"), lambda a, b, alpha: a + alpha * b, _sum_error),
    "sub": Elementwise((*_TWO, "alpha"), lambda a, b, alpha: a - alpha * b, _sum_error),
    "rsub": Elementwise((*_TWO, "alpha"), lambda a, b, alpha: b - alpha * a, lambda u, y, *x: 2 * u * np.abs(y)),
    "mul": Elementwise(_TWO, np.multiply, _product_error),
    "div": Elementwise((*_TWO, "rounding_mode"), _divide, _ONCE),
    "neg": Elementwise(_X, np.negative),
    "abs": Elementwise(_X, np.abs),
    "sign": Elementwise(_X, np.sign),
    "floor": Elementwise(_X, np.floor),
    "ceil": Elementwise(_X, np.ceil),
    "trunc": Elementwise(_X, np.trunc),
    "round": Elementwise(_X, np.rint),
    "reciprocal": Elementwise(_X, np.reciprocal, _ONCE),
    "sqrt": Elementwise(_X, np.sqrt, _ONCE),
    "rsqrt": Elementwise(_X, lambda x: 1 / np.sqrt(x), _relative(3)),
    "exp": Elementwise(_X, np.exp, _LIBRARY),
    "exp2": Elementwise(_X, np.exp2, _LIBRARY),
    "expm1": Elementwise(_X, np.expm1, _LIBRARY),
    "log": Elementwise(_X, np.log, lambda u, y, x: FUNCTION * u * np.abs(y)),
    "log2": Elementwise(_X, np.log2, _LIBRARY),
    "log1p": Elementwise(_X, np.log1p, _LIBRARY),
    "sin": Elementwise(_X, np.sin, _absolute(FUNCTION)),
    "cos": Elementwise(_X, np.cos, _absolute(FUNCTION)),
    "tan": Elementwise(_X, np.tan, lambda u, y, x: FUNCTION * u * (1 + y * y)),
    "erf": Elementwise(_X, _erf, _absolute(3 * FUNCTION)),
    "softplus": Elementwise((*_X, "beta", "threshold"), _softplus, _softplus_error),
    "pow": Elementwise((*_X, "exponent"), _power, _power_error),
    "square": Elementwise(_X, np.square, _ONCE),
    "clamp": Elementwise((*_X, "min", "max"), _clamp),
    "clamp_min": Elementwise((*_X, "min"), np.maximum),
    "clamp_max": Elementwise((*_X, "max"), np.minimum),
    "maximum": Elementwise(_TWO, np.maximum),
    "minimum": Elementwise(_TWO, np.minimum),
    "where": Elementwise(("condition", *_TWO), np.where),
    "masked_fill": Elementwise((*_X, "mask", "value"), lambda x, mask, value: np.where(mask, value, x)),
    "eq": Elementwise(_TWO, np.equal),
    "ne": Elementwise(_TWO, np.not_equal),
    "lt": Elementwise(_TWO, np.less),
    "le": Elementwise(_TWO, np.less_equal),
    "gt": Elementwise(_TWO, np.greater),
    "ge": Elementwise(_TWO, np.greater_equal),
    "isnan": Elementwise(_X, np.isnan),
    "isinf": Elementwise(_X, np.isinf),
    "logical_not": Elementwise(_X, np.logical_not),
    "logical_and": Elementwise(_TWO, np.logical_and),
    "logical_or": Elementwise(_TWO, np.logical_or),
    "bitwise_not": Elementwise(_X, np.invert),
    "bitwise_and": Elementwise(_TWO, np.bitwise_and),
    "bitwise_or": Elementwise(_TWO, np.bitwise_or),
    "__lshift__": Elementwise(_TWO, np.left_shift),
    "__rshift__": Elementwise(_TWO, np.right_shift),
    "remainder": Elementwise(_TWO, np.mod),
    "floor_divide": Elementwise(_TWO, lambda a, b: _divide(a, b, "floor")),
    "lerp": Elementwise(
        ("self", "end", "weight"),
        lambda a, b, w: a + w * (b - a),
        lambda u, y, a, b, w: 3 * u * (np.abs(a) + np.abs(w) * (np.abs(a) + np.abs(b))),
    ),
    "addcmul": Elementwise(
        ("self", "tensor1", "tensor2", "value"),
        lambda x, a, b, value: x + value * a * b,
        lambda u, y, x, a, b, value: u * np.abs(y) + 2 * u * np.abs(value * a * b),
    ),
    "addcdiv": Elementwise(
        ("self", "tensor1", "tensor2", "value"),
        lambda x, a, b, value: x + value * a / b,
        lambda u, y, x, a, b, value: u * np.abs(y) + 2 * u * np.abs(value * a / b),
    ),
    "_to_copy": Elementwise(_X, lambda x: x),
    "clone": Elementwise(_X, lambda x: x),
    "contiguous": Elementwise(_X, lambda x: x),
    "copy": Elementwise(("src",), lambda x: x),
    "_local_scalar_dense": Elementwise(_X, lambda x: x.reshape(())),
}
# torch stores the root before it divides, in some loops.
_ROUNDED_BETWEEN = ("rsqrt",)


def elementwise(call: Call) -> list[Expected]:
    """Compute a call of ELEMENTWISE."""
    rule, y = ELEMENTWISE[call.op], call.outputs[0]
    if call.args.get("decimals"):
        raise NotJudged("rounded to decimals")
    given = [call.args.get(name, 1 if name == "alpha" else None) for name in rule.names]
    x = [one if one is None or isinstance(one, str) else wide(one) for one in given]
    with np.errstate(all="ignore"):
        truth = np.asarray(rule.function(*x))
        if call.op == "copy":
            truth = np.broadcast_to(truth, tuple(y.shape))
        if not hasattr(y, "dtype"):
            return [Expected(truth)]
        limit: Any = 0.0
        rounded = _rounded_inputs(x, values(y).dtype, given)
        if rounded is not None:
            other = np.asarray(rule.function(*rounded))
            if truth.dtype.kind == "b" and (truth != other).any():
                raise NotJudged("a comparison with a number that its dtype does not hold")
            limit = np.nan_to_num(np.abs(other - truth), nan=0.0) if truth.dtype.kind in "fc" else 0.0
        if rule.error is not None and truth.dtype.kind in "fc":
            limit = limit + rule.error(call.run.u, truth, *x)
        if call.op in _ROUNDED_BETWEEN and truth.dtype.kind == "f":
            limit = limit + call.run.between(np.abs(truth))
    if not (y.dtype.is_floating_point or y.dtype.is_complex):
        return [Expected(_whole(truth, values(y).dtype))]
    return [expected(call, truth, limit)]


def _whole(truth: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Cast to integers or booleans. Raises NotJudged for floats that the dtype does not hold: processors differ."""
    if truth.dtype.kind == "f" and dtype.kind in "iu":
        limits = np.iinfo(dtype)
        if not ((truth > limits.min - 1.0) & (truth < limits.max + 1.0)).all():
            raise NotJudged(f"numbers that {dtype} does not hold")
    return truth.astype(dtype)


def _rounded_inputs(x: list, dtype: np.dtype, given: list) -> list | None:
    """Round inputs that the dtype does not hold, where they are wider than it; None if there are none."""
    if dtype.kind in "iub":
        dtype = max((values(t).dtype for t in given if hasattr(t, "dtype") and t.ndim), key=_width, default=dtype)
    if dtype not in SCALAR_TYPES.values() or dtype.kind in "iub":
        return None
    changed, rounded = False, []
    for one, original in zip(x, given, strict=True):
        wider = isinstance(one, np.ndarray) and one.dtype.kind in "fiu" and not _same_type(original, dtype)
        near = one.astype(dtype).astype(np.float64) if wider else one
        changed = changed or (wider and not np.array_equal(near, one, equal_nan=True))
        rounded.append(near)
    return rounded if changed else None


def _width(dtype: np.dtype) -> int:
    return dtype.itemsize if dtype.kind not in "iub" else 0


def _same_type(original: Any, dtype: np.dtype) -> bool:
    return hasattr(original, "dtype") and not isinstance(original, np.ndarray) and values(original).dtype == dtype
