"""Operators that read and write at indices. A negative index counts from the end."""

import numpy as np

from refsd.numerics.errors import BadInput
from refsd.onnx.evaluate.node import Node, operator

_INTO = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _checked(index, n: int):
    if index.size and not (-n <= index.min() and index.max() < n):
        raise BadInput(f"indices from {index.min()} to {index.max()} of an axis of {n}")
    return np.where(index < 0, index + n, index)


@operator("Gather")
def gather(node: Node, x, index):
    axis = node.axis(node.attribute("axis", 0), x.ndim)
    node.room((*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]), x.itemsize)
    return np.take(x, _checked(index, x.shape[axis]), axis)


@operator("GatherElements")
def gather_elements(node: Node, x, index):
    axis = node.axis(node.attribute("axis", 0), x.ndim)
    return x[_places(x, _checked(index, x.shape[axis]), axis)]


def _places(x, index, axis: int):
    """For each index, its own place on the other axes."""
    places = list(np.ogrid[tuple(slice(n) for n in index.shape)])
    places[axis] = index
    return tuple(places)


@operator("GatherND")
def gather_nd(node: Node, x, index):
    batch, depth = node.attribute("batch_dims", 0), index.shape[-1]
    node.room((*index.shape[:-1], *x.shape[batch + depth :]), x.itemsize)
    return x[_nd_places(x, index, batch)]


def _nd_places(x, index, batch: int = 0):
    parts = [_checked(index[..., i], x.shape[batch + i]) for i in range(index.shape[-1])]
    leading = [np.arange(n).reshape((-1,) + (1,) * (index.ndim - 2 - i)) for i, n in enumerate(index.shape[:batch])]
    return (*leading, *parts)


@operator("ScatterND")
def scatter_nd(node: Node, x, index, updates):
    y = x.copy()
    _write(y, _nd_places(x, index), updates, node.attribute("reduction", "none"))
    return y


@operator("ScatterElements", "Scatter")
def scatter_elements(node: Node, x, index, updates):
    axis = node.axis(node.attribute("axis", 0), x.ndim)
    y = x.copy()
    _write(y, _places(x, _checked(index, x.shape[axis]), axis), updates, node.attribute("reduction", "none"))
    return y


def _write(y, places, updates, reduction: str) -> None:
    if reduction == "none":
        y[places] = updates
    else:
        _INTO[reduction].at(y, places, updates)


@operator("Compress")
def compress(node: Node, x, condition):
    axis = node.attribute("axis")
    x = x.reshape(-1) if axis is None else x
    return np.compress(condition, x, 0 if axis is None else node.axis(axis, x.ndim))
