"""Products of matrices beyond a linear layer's, sums, means and the like, with the bounds of golden/bounds.py."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from refsd.golden.bounds import FUNCTION, products, sums
from refsd.golden.rounding import moved_by_type
from refsd.watching.calls import Call, Expected, NotJudged, Rule, expected, values, wide


def matmul(a: str, b: str, added: str | None = None) -> Rule:
    """beta added + alpha a b, each item of a batch by itself."""

    def rule(call: Call) -> list[Expected]:
        x, y = wide(call.args[a]), wide(call.args[b])
        if x.dtype.kind != "f":
            return [Expected(np.matmul(x, y))]
        alpha, beta = call.args.get("alpha", 1), call.args.get("beta", 1) if added else 0
        truth, limit, spread = _products(call, x, y)
        truth, limit, spread = alpha * truth, abs(alpha) * limit, abs(alpha) * spread
        if alpha != 1:
            limit = limit + call.run.u * np.abs(truth)
        if added and beta:
            bias = wide(call.args[added]) * beta
            truth = truth + bias
            more = 2 * call.run.u * (np.abs(truth) + np.abs(bias))
            if beta != 1:
                more = more + call.run.between(np.abs(bias))
            limit, spread = limit + more, np.hypot(spread, more)
        return [expected(call, truth, limit, spread)]

    return rule


def int8_matmul(call: Call) -> list[Expected]:
    """int8 times int8, added up in int32; exact in float64, which BLAS multiplies faster than integers."""
    x, y = (values(call.args[name]).astype(np.float64) for name in ("self", "mat2"))
    return [Expected(np.matmul(x, y))]


def _products(call: Call, x, y) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return x y with limit and spread; both factors may be rounded to the type of the numerics' products."""
    through = call.numerics.products
    dx, dy = moved_by_type(x, through), moved_by_type(y, through)
    ax, ay = np.abs(x), np.abs(y)
    truth, absolute = np.matmul(x, y), np.matmul(ax + dx, ay + dy)
    squares = np.matmul((ax + dx) ** 2, (ay + dy) ** 2)
    limit, spread = sums(call.run, "linear", x.shape[-1], absolute, squares, truth, through)
    if through is not None:
        limit = limit + np.matmul(dx, ay) + np.matmul(ax + dx, dy)
        spread = np.sqrt(spread**2 + (np.matmul(dx**2, ay**2) + np.matmul(ax**2, dy**2)) / 3)
    return truth, limit, spread


def _axes(call: Call, x: np.ndarray) -> tuple[int, ...]:
    dim = call.args.get("dim")
    if not x.ndim:
        return ()
    if dim is None or dim == []:
        return tuple(range(x.ndim))
    return tuple(d % max(x.ndim, 1) for d in ([dim] if isinstance(dim, int) else dim))


def _reduced(call: Call, x: np.ndarray) -> tuple[dict[str, Any], int]:
    """Return NumPy's arguments for the axes, and how many numbers each result is of."""
    axes = _axes(call, x)
    return {"axis": axes, "keepdims": bool(call.args.get("keepdim", False))}, math.prod(x.shape[d] for d in axes)


def total(call: Call, power: int = 1) -> list[Expected]:
    x = wide(call.args["self"])
    how, n = _reduced(call, x)
    if x.dtype.kind != "f":
        return [expected(call, x.sum(**how))]
    truth = x.sum(**how)
    limit, spread = products(call.run.u, n, np.abs(x).sum(**how), (x**2).sum(**how), truth)
    return [expected(call, truth, limit, spread)]


def mean(call: Call) -> list[Expected]:
    x = wide(call.args["self"])
    how, n = _reduced(call, x)
    truth = x.mean(**how)
    limit, spread = products(call.run.u, n, np.abs(x).sum(**how), (x**2).sum(**how), truth * n)
    return [expected(call, truth, limit / n + call.run.u * np.abs(truth), np.hypot(spread / n, call.run.u * truth))]


def variance(root: bool) -> Rule:
    def rule(call: Call) -> list[Expected]:
        x, u = wide(call.args["self"]), call.run.u
        how, n = _reduced(call, x)
        unbiased = call.args.get("unbiased", True)
        correction = call.args.get("correction")
        ddof = (1 if unbiased else 0) if correction is None else correction
        v = x.var(ddof=ddof, **how)
        moved = n * u * np.abs(x).mean(**how)
        limit = 2 * np.sqrt(v) * moved + moved**2 + (n + 3) * u * v
        if root:
            with np.errstate(all="ignore"):
                truth = np.sqrt(v)
                limit = np.minimum(np.sqrt(limit), np.nan_to_num(limit / (2 * truth), nan=np.inf)) + u * truth
            return [expected(call, truth, limit)]
        return [expected(call, v, limit)]

    return rule


def norm(call: Call) -> list[Expected]:
    """The 2-norm."""
    if call.args.get("ord", call.args.get("p", 2)) not in (2, None):
        raise NotJudged("a norm of another order than 2")
    x = wide(call.args["self"])
    how, n = _reduced(call, x)
    limits = np.finfo(call.numerics.compute)
    largest = np.abs(x).max(initial=0.0)
    if largest and not math.sqrt(limits.smallest_normal / limits.eps) < largest < math.sqrt(limits.max / n):
        raise NotJudged(f"squares that {limits.dtype} does not hold")
    truth = np.sqrt((x**2).sum(**how))
    return [expected(call, truth, (n / 2 + 2) * call.run.u * truth, (math.sqrt(n) + 2) * call.run.u * truth)]


def extreme(function, index) -> Rule:
    """The largest or smallest; of equal ones any index is right."""

    def rule(call: Call) -> list[Expected]:
        x = wide(call.args["self"])
        how, _ = _reduced(call, x)
        results = [expected(call, np.asarray(function(x, **how)))]
        if len(call.outputs) > 1:
            at = wide(call.outputs[1])
            at = at if how["keepdims"] else np.expand_dims(at, how["axis"])
            there = np.take_along_axis(x, at, how["axis"][0])
            best = function(x, axis=how["axis"], keepdims=True)
            same = (there == best) | (np.isnan(there) & np.isnan(best))
            first = np.where(same, at, np.expand_dims(index(x, axis=how["axis"][0]), how["axis"][0]))
            results.append(Expected(first if how["keepdims"] else first.squeeze(how["axis"])))
        return results

    return rule


def place_of_extreme(function) -> Rule:
    """argmax, argmin; of equal numbers any index is right."""

    def rule(call: Call) -> list[Expected]:
        x = wide(call.args["self"])
        dim = call.args.get("dim")
        rows, axis = (x.reshape(-1), 0) if dim is None else (np.atleast_1d(x), dim)
        best, at = np.expand_dims(function(rows, axis=axis), axis), wide(call.outputs[0]).reshape(-1)
        at = at.reshape(best.shape)
        inside = (at >= 0) & (at < rows.shape[axis])
        there = np.take_along_axis(rows, best, axis) == np.take_along_axis(rows, np.where(inside, at, 0), axis)
        return [Expected(np.where(inside & there, at, best).reshape(call.outputs[0].shape))]

    return rule


def top(call: Call) -> list[Expected]:
    """The k largest or smallest and their places, of equal ones any, in any order unless they are to be sorted."""
    x, dim = np.atleast_1d(wide(call.args["self"])), call.args.get("dim", -1)
    if np.isnan(x).any():
        raise NotJudged("the order of NaN")
    order = np.argsort(-x if call.args.get("largest", True) else x, dim, kind="stable")
    order = np.take(order, np.arange(call.args["k"]), dim)
    truth = np.take_along_axis(x, order, dim)
    found, at = (np.atleast_1d(wide(y)) for y in call.outputs)
    if not call.args.get("sorted", True) and np.array_equal(np.sort(found, dim), np.sort(truth, dim)):
        truth = found
    once = bool(np.all((at >= 0) & (at < x.shape[dim])) and np.all(np.diff(np.sort(at, dim), axis=dim) > 0))
    right = once and np.array_equal(np.take_along_axis(x, at, dim), truth)
    shape = call.outputs[0].shape
    return [expected(call, truth.reshape(shape)), Expected((at if right else order).reshape(shape))]


def product(call: Call) -> list[Expected]:
    x = wide(call.args["self"])
    how, n = _reduced(call, x)
    truth = x.prod(**how)
    if x.dtype.kind != "f":
        return [expected(call, truth)]
    if call.numerics.storage != call.numerics.compute:
        raise NotJudged("a product that is stored after each factor")
    return [expected(call, truth, n * call.run.u * np.abs(truth))]


def log_sum_exp(call: Call) -> list[Expected]:
    """torch makes it of several operations: differences, exponentials, their sum and its logarithm are stored."""
    x, u = wide(call.args["self"]), call.run.u
    how, n = _reduced(call, x)
    largest = x.max(axis=how["axis"], keepdims=True)
    apart = x - largest
    rest = np.log(np.exp(apart).sum(**how))
    stored = call.run.between(3 + np.abs(apart).max(axis=how["axis"], keepdims=how["keepdims"]) + np.abs(rest))
    largest = largest if how["keepdims"] else largest.squeeze(how["axis"])
    truth = largest + rest
    return [expected(call, truth, stored + u * (2 * FUNCTION + n + 2 * np.abs(largest) + 2 * np.abs(truth)))]


def added_at(where: Callable[[Mapping[str, Any]], tuple[Any, np.ndarray]]) -> Callable[[Call], list[Expected]]:
    """Add numbers at places, several at one in any order. where: arguments -> places, numbers to add"""

    def rule(call: Call) -> list[Expected]:
        x = np.atleast_1d(wide(call.args["self"]))
        places, new = where(call.args)
        truth = x.copy()
        np.add.at(truth, places, new)
        if x.dtype.kind != "f":
            return [Expected(truth.reshape(call.outputs[0].shape))]
        absolute, count = np.abs(x), np.zeros(x.shape)
        np.add.at(absolute, places, np.abs(new))
        np.add.at(count, places, 1)
        limit = count * (call.run.u * absolute + call.run.between(absolute))
        return [expected(call, *(y.reshape(call.outputs[0].shape) for y in (truth, limit)))]

    return rule


def _along(a: Mapping[str, Any]) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    index = np.atleast_1d(values(a["index"]))
    places = list(np.indices(index.shape, sparse=True))
    places[a["dim"]] = index
    return tuple(places), np.atleast_1d(wide(a["src"]))[tuple(map(slice, index.shape))]


def _at_index(a: Mapping[str, Any]) -> tuple[tuple[Any, ...], np.ndarray]:
    """Return whole rows; index_add multiplies them by alpha."""
    if a.get("alpha", 1) != 1:
        raise NotJudged("rows that are multiplied before they are added")
    source = np.atleast_1d(wide(a["source"]))
    return (*[slice(None)] * (a["dim"] % source.ndim), np.atleast_1d(values(a["index"]))), source


def cumulative(call: Call) -> list[Expected]:
    x, dim = wide(call.args["self"]), call.args["dim"]
    truth = np.cumsum(x, axis=dim)
    if x.dtype.kind != "f":
        return [expected(call, truth)]
    limit = x.shape[dim] * call.run.u * np.cumsum(np.abs(x), axis=dim)
    return [expected(call, truth, limit)]


def log_softmax(call: Call) -> list[Expected]:
    """An engine may store the maximum with the logarithm of the sum, before it subtracts both."""
    x, dim, u = np.atleast_1d(wide(call.args["self"])), call.args["dim"], call.run.u
    s = x - x.max(axis=dim, keepdims=True)
    truth = s - np.log(np.exp(s).sum(axis=dim, keepdims=True))
    between = call.run.between(np.abs(x).max(axis=dim, keepdims=True) + np.abs(truth - s))
    return [expected(call, truth, between + u * (2 * FUNCTION + x.shape[dim] + 2 * np.abs(s) + 2 * np.abs(truth)))]


def _logical(function) -> Rule:
    def rule(call: Call) -> list[Expected]:
        x = wide(call.args["self"]).astype(bool)
        return [Expected(np.asarray(function(x, **_reduced(call, x)[0])))]

    return rule


SUMS: dict[str, Rule] = {
    "mm": matmul("self", "mat2"),
    "_int_mm": int8_matmul,
    "addmm": matmul("mat1", "mat2", "self"),
    "bmm": matmul("self", "mat2"),
    "baddbmm": matmul("batch1", "batch2", "self"),
    "mv": matmul("self", "vec"),
    "dot": matmul("self", "tensor"),
    "sum": total,
    "mean": mean,
    "var": variance(root=False),
    "std": variance(root=True),
    "linalg_vector_norm": norm,
    "norm": norm,
    "max": extreme(np.max, np.argmax),
    "min": extreme(np.min, np.argmin),
    "amax": extreme(np.max, np.argmax),
    "amin": extreme(np.min, np.argmin),
    "argmax": place_of_extreme(np.argmax),
    "argmin": place_of_extreme(np.argmin),
    "topk": top,
    "prod": product,
    "logsumexp": log_sum_exp,
    "scatter_add": added_at(_along),
    "index_add": added_at(_at_index),
    "cumsum": cumulative,
    "_log_softmax": log_softmax,
    "any": _logical(np.any),
    "all": _logical(np.all),
}
