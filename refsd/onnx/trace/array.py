"""An array that is a value of a graph: what NumPy does to it becomes nodes."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from refsd.onnx.builder import Builder, Value


class Graph(Builder):
    """A builder whose own names begin with a slash, so that every tap keeps its name.

    dtype: of the floats
    """

    def __init__(self, graph: str, dtype: np.dtype):
        super().__init__(graph)
        self.dtype = np.dtype(dtype)

    def node(self, op: str, *inputs, name: str = "", **attributes) -> Value:
        return super().node(op, *inputs, name=name or f"/{op.lower()}", **attributes)

    def constant(self, array: np.ndarray, name: str = "") -> Value:
        array = np.asarray(array)
        if array.dtype.kind == "f" and not name:
            array = array.astype(self.dtype)
        return super().constant(array, name)

    def named(self, value: Value, name: str) -> Value:
        """Give the newest node's result this name; any other value gets it by an Identity."""
        newest = self._nodes[-1] if self._nodes else None
        if newest is None or newest.output[0] != value.name or not value.name.startswith("/"):
            return self.node("Identity", value, name=name)
        unique = self._unique(name)
        newest.output[0] = newest.name = self._values[-1].name = unique
        return value._replace(name=unique)

    def also_output(self, value: Value) -> None:
        """Make a value an output of the graph under the name that it has."""
        self._outputs.append(next(info for info in reversed(self._values) if info.name == value.name))


class Traced:
    """A value of a graph that NumPy's functions, operators and indices act on.

    known: its content if it does not depend on the graph's inputs and models read it, else None
    """

    def __init__(self, graph: Graph, value: Value, known: np.ndarray | None = None):
        self.graph, self.value, self.known = graph, value, known

    shape = property(lambda self: self.value.shape)
    dtype = property(lambda self: self.value.dtype)
    ndim = property(lambda self: len(self.value.shape))

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator["Traced"]:
        return (self[i] for i in range(len(self)))

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        if self.known is None:
            raise TypeError(f"{self.value.name} depends on the inputs: a graph cannot read it while it is made")
        return np.asarray(self.known, dtype)

    def min(self):
        return np.asarray(self).min()

    def _made(self, value: Value) -> "Traced":
        return Traced(self.graph, value)

    def reshape(self, *shape) -> "Traced":
        whole = shape[0] if len(shape) == 1 and not isinstance(shape[0], int | np.integer) else shape
        return self._made(self.graph.reshape(self.value, [int(n) for n in whole]))

    def transpose(self, *axes) -> "Traced":
        order = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes
        return self._made(self.graph.transpose(self.value, order or range(self.ndim)[::-1]))

    def swapaxes(self, a: int, b: int) -> "Traced":
        order = list(range(self.ndim))
        order[a], order[b] = order[b], order[a]
        return self.transpose(order)

    def astype(self, dtype, copy=True) -> "Traced":
        """Floats keep the graph's dtype."""
        return (
            self
            if np.dtype(dtype).kind == "f" == self.dtype.kind
            else self._made(self.graph.cast(self.value, dtype))
        )

    def __getitem__(self, index) -> "Traced":
        """Integers, slices, None, and one pair (arange, positions), which picks a row of each item."""
        parts = list(index) if isinstance(index, tuple) else [index]
        if len(parts) == 2 and isinstance(parts[1], Traced):
            return self._rows(parts[1])
        if Ellipsis in parts:
            i = parts.index(Ellipsis)
            parts[i : i + 1] = [slice(None)] * (self.ndim - sum(p is not None for p in parts) + 1)
        b, value, axis = self.graph, self.value, 0
        dropped, added, place = [], [], 0
        for part in parts:
            if part is None:
                added.append(place)
                place += 1
                continue
            if isinstance(part, slice):
                start, stop, step = part.indices(self.shape[axis])
                if (start, stop, step) != (0, self.shape[axis], 1):
                    value = b.node("Slice", value, [start], [stop], [axis], [step])
                place += 1
            else:
                i = int(part) % self.shape[axis]
                value = b.slice(value, axis, i, i + 1)
                dropped.append(axis)
            axis += 1
        value = b.node("Squeeze", value, dropped) if dropped else value
        return self._made(b.node("Unsqueeze", value, added) if added else value)

    def _rows(self, positions: "Traced") -> "Traced":
        b = self.graph
        items = b.constant(np.arange(len(self))[:, None])
        at = b.concat([items, b.node("Unsqueeze", positions.value, [1])], 1)
        return self._made(b.node("GatherND", self.value, at))

    def __array_ufunc__(self, ufunc, method, *inputs, **params) -> "Traced":
        if method != "__call__" or ufunc.__name__ not in _UFUNCS:
            raise TypeError(f"no node for NumPy's {ufunc.__name__}")
        values = [
            traced(self.graph, x if isinstance(x, Traced) else np.asarray(x, self.dtype)).value for x in inputs
        ]
        return self._made(self.graph.node(_UFUNCS[ufunc.__name__], *values))

    def __array_function__(self, function, types, arguments, params) -> Any:
        if function.__name__ not in _FUNCTIONS:
            raise TypeError(f"no node for NumPy's {function.__name__}")
        return _FUNCTIONS[function.__name__](self.graph, *arguments, **params)

    def __add__(self, other):
        return np.add(self, other)

    def __radd__(self, other):
        return np.add(other, self)

    def __mul__(self, other):
        return np.multiply(self, other)

    def __rmul__(self, other):
        return np.multiply(other, self)

    def __sub__(self, other):
        return np.subtract(self, other)

    def __rsub__(self, other):
        return np.subtract(other, self)

    def __truediv__(self, other):
        return np.divide(self, other)

    def __eq__(self, other):
        return np.equal(self, other)

    __hash__ = None  # type: ignore[assignment]


def traced(graph: Graph, x: Any) -> Traced:
    """x as a value of the graph: an array or a number becomes a constant."""
    return x if isinstance(x, Traced) else Traced(graph, graph.constant(np.asarray(x)), np.asarray(x))


_UFUNCS = {
    "add": "Add", "subtract": "Sub", "multiply": "Mul", "divide": "Div", "equal": "Equal", "maximum": "Max",
    "minimum": "Min", "matmul": "MatMul", "tanh": "Tanh", "negative": "Neg", "sqrt": "Sqrt",
}  # fmt: skip


def _concatenate(b: Graph, parts, axis=0):
    values = [traced(b, part).value for part in parts]
    return Traced(b, b.concat(values, axis % len(values[0].shape)))


def _split(b: Graph, x: Traced, sections, axis=0):
    axis %= x.ndim
    n = x.shape[axis]
    ends = (
        [n // sections * i for i in range(1, sections)] if isinstance(sections, int) else [int(i) for i in sections]
    )
    bounds = zip([0, *ends], [*ends, n], strict=True)
    return [Traced(b, b.slice(x.value, axis, start, stop)) for start, stop in bounds]


def _repeat(b: Graph, x: Traced, repeats, axis):
    index = b.constant(np.repeat(np.arange(x.shape[axis]), repeats))
    return Traced(b, b.node("Gather", x.value, index, axis=axis))


def _moveaxis(b: Graph, x: Traced, source: int, destination: int):
    order = [axis for axis in range(x.ndim) if axis != source % x.ndim]
    order.insert(destination % x.ndim, source % x.ndim)
    return x.transpose(order)


def _take(b: Graph, x: Traced, indices, axis):
    return Traced(b, b.node("Gather", x.value, b.constant(np.asarray(indices, np.int64)), axis=axis))


def _where(b: Graph, condition, x, y):
    return Traced(b, b.node("Where", *(traced(b, part).value for part in (condition, x, y))))


def _argmax(b: Graph, x: Traced, axis):
    value = b.cast(x.value, np.int32) if x.dtype == np.bool_ else x.value
    return Traced(b, b.node("ArgMax", value, axis=axis, keepdims=0))


# name in NumPy -> what it does to Traced arguments
_FUNCTIONS: dict[str, Callable] = {
    "concatenate": _concatenate,
    "split": _split,
    "broadcast_to": lambda b, x, shape: Traced(b, b.node("Expand", x.value, [int(n) for n in shape])),
    "repeat": _repeat,
    "take": _take,
    "append": lambda b, x, more: _concatenate(b, [traced(b, part).reshape(-1) for part in (x, more)]),
    "where": _where,
    "argmax": _argmax,
    "mean": lambda b, x, axis: Traced(b, b.node("ReduceMean", x.value, [axis], keepdims=0)),
    "moveaxis": _moveaxis,
    "copy": lambda b, x, order: x,
    "zeros_like": lambda b, x: np.zeros(x.shape, x.dtype),
}
