"""Sums, means, extremes and sorted parts along axes."""

import numpy as np

from refsd.numerics.errors import BadInput
from refsd.onnx.evaluate.node import Node, operator


def _log_sum_exp(x, axis, keepdims):
    most = x.max(axis=axis, keepdims=True, initial=-np.inf)
    most = np.where(np.isfinite(most), most, 0)
    y = np.log(np.exp(x - most).sum(axis=axis, keepdims=True)) + most
    return y if keepdims else np.squeeze(y, axis)


_REDUCTIONS = {
    "ReduceSum": lambda x, **of: x.sum(dtype=x.dtype, **of),
    "ReduceMean": lambda x, **of: x.mean(**of).astype(x.dtype),
    "ReduceProd": lambda x, **of: x.prod(dtype=x.dtype, **of),
    "ReduceMax": lambda x, **of: x.max(**({"initial": _least(x.dtype)} | of)),
    "ReduceMin": lambda x, **of: x.min(**({"initial": _most(x.dtype)} | of)),
    "ReduceL1": lambda x, **of: np.abs(x).sum(dtype=x.dtype, **of),
    "ReduceL2": lambda x, **of: np.sqrt(np.square(x).sum(**of)).astype(x.dtype),
    "ReduceSumSquare": lambda x, **of: np.square(x).sum(dtype=x.dtype, **of),
    "ReduceLogSum": lambda x, **of: np.log(x.sum(**of)),
    "ReduceLogSumExp": _log_sum_exp,
}


def _least(dtype):
    return False if dtype.kind == "b" else -np.inf if dtype.kind == "f" else np.iinfo(dtype).min


def _most(dtype):
    return True if dtype.kind == "b" else np.inf if dtype.kind == "f" else np.iinfo(dtype).max


@operator(*_REDUCTIONS)
def reduction(node: Node, x, axes=None):
    """Axes are an attribute, later an input; none means all, or with noop_with_empty_axes nothing."""
    axes = node.attribute("axes") if axes is None else axes
    if axes is None or not len(axes):
        if node.attribute("noop_with_empty_axes", 0):
            return _REDUCTIONS[node.op](x[None], axis=(0,), keepdims=False)
        axes = range(x.ndim)
    keepdims = bool(node.attribute("keepdims", 1))
    return _REDUCTIONS[node.op](x, axis=node.axes(axes, x.ndim), keepdims=keepdims)


@operator("ArgMax", "ArgMin")
def arg_extreme(node: Node, x):
    find = np.argmax if node.op == "ArgMax" else np.argmin
    axis = node.axis(node.attribute("axis", 0), x.ndim)
    if node.attribute("select_last_index", 0):
        y = x.shape[axis] - 1 - find(np.flip(x, axis), axis)
    else:
        y = find(x, axis)
    return (np.expand_dims(y, axis) if node.attribute("keepdims", 1) else np.asarray(y)).astype(np.int64)


@operator("CumSum", "CumProd")
def cumulative(node: Node, x, axis):
    """Exclusive: without the element itself, so that the first is 0 or 1."""
    axis = node.axis(int(axis.reshape(())), x.ndim)
    accumulate, first = (np.cumsum, 0) if node.op == "CumSum" else (np.cumprod, 1)
    flipped = np.flip(x, axis) if node.attribute("reverse", 0) else x
    if node.attribute("exclusive", 0):
        start = np.full_like(np.take(flipped, [0] if x.shape[axis] else [], axis), first)
        flipped = np.concatenate([start, np.take(flipped, np.arange(max(0, x.shape[axis] - 1)), axis)], axis)
    y = accumulate(flipped, axis, dtype=x.dtype)
    return np.flip(y, axis) if node.attribute("reverse", 0) else y


@operator("TopK")
def top_k(node: Node, x, k=None):
    """Of equal values the one with the lower index comes first."""
    axis = node.axis(node.attribute("axis", -1), x.ndim)
    count = node.attribute("k") if k is None else int(k.reshape(()))
    if not 0 <= count <= x.shape[axis]:
        raise BadInput(f"k is {count}, the axis has {x.shape[axis]}")
    keys = x if not node.attribute("largest", 1) else (-x if x.dtype.kind != "u" else x.max(initial=0) - x)
    order = np.argsort(keys, axis, kind="stable")
    index = np.take(order, np.arange(count), axis)
    return np.take_along_axis(x, index, axis), index.astype(np.int64)


@operator("NonZero")
def non_zero(node: Node, x):
    return np.array(np.nonzero(np.atleast_1d(x)), np.int64)


@operator("Unique")
def unique(node: Node, x):
    axis = node.attribute("axis")
    axis = None if axis is None else node.axis(axis, x.ndim)
    y, first, inverse, counts = np.unique(x, True, True, True, axis=axis)
    if not node.attribute("sorted", 1):
        order = np.argsort(first)
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        y, first, counts = np.take(y, order, axis or 0), first[order], counts[order]
        inverse = place[inverse]
    return y, *(index.reshape(-1).astype(np.int64) for index in (first, inverse, counts))
