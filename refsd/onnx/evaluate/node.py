"""What an operator's page sees of a node, and the registry of the pages."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import AttributeProto

from refsd.numerics.errors import BadInput
from refsd.onnx.evaluate.budget import Budget
from refsd.onnx.evaluate.element_types import number_of


class Rules(NamedTuple):
    """
    dtype: that floats are computed in
    exact: True to ignore casts between floats of 16 bits and more
    """

    dtype: np.dtype
    exact: bool


class Node:
    """A node with its attributes read.

    version:     of its domain's operator set
    types:       element types of its inputs, by number; 0 for one that is left out
    output_type: set by a page where it is not that of the first float input
    run_graph:   (graph, values by name) -> its outputs, in the scope of this node
    """

    def __init__(
        self,
        proto: onnx.NodeProto,
        version: int,
        rules: Rules,
        budget: Budget,
        attributes: dict[str, Any],
        types: Sequence[int] = (),
        run_graph: Callable[..., list[np.ndarray]] | None = None,
    ):
        self.proto, self.version, self.rules, self.budget = proto, version, rules, budget
        self.attributes, self.types, self._run_graph = attributes, types, run_graph
        self.output_type: int | None = None

    @property
    def op(self) -> str:
        return self.proto.op_type

    def attribute(self, name: str, default: Any = None) -> Any:
        """An attribute's value: a number, a string, a list, a tensor or a graph."""
        return self.attributes.get(name, default)

    def room(self, shape: Iterable[int], itemsize: int | None = None) -> tuple[int, ...]:
        """Check that a result of this shape fits in memory -> the shape."""
        return self.budget.room(shape, self.rules.dtype.itemsize if itemsize is None else itemsize)

    def run_graph(self, graph: onnx.GraphProto, values: Sequence[np.ndarray]) -> list[np.ndarray]:
        assert self._run_graph is not None
        return self._run_graph(graph, values)

    def axis(self, axis: int, ndim: int) -> int:
        """An axis counted from the front. Raises BadInput for one that is not there."""
        if not -ndim <= axis < max(ndim, 1):
            raise BadInput(f"axis {axis} of a tensor with {ndim} axes")
        return axis % ndim if ndim else 0

    def axes(self, axes: Iterable[int], ndim: int) -> tuple[int, ...]:
        return tuple(self.axis(int(a), ndim) for a in axes)


Operator = Callable[..., "np.ndarray | tuple[np.ndarray, ...]"]

# (domain, operator) -> (first version, page), newest first
OPERATORS: dict[tuple[str, str], list[tuple[int, Operator]]] = {}


def operator(*names: str, since: int = 1, domain: str = "") -> Callable[[Operator], Operator]:
    """Register a function (node, *inputs) -> output or outputs; None stands for an input that is left out."""

    def add(page: Operator) -> Operator:
        for name in names:
            versions = OPERATORS.setdefault((domain, name), [])
            versions.append((since, page))
            versions.sort(key=lambda version: -version[0])
        return page

    return add


def find(domain: str, op: str, version: int) -> Operator | None:
    """The page of an operator as this version of its domain has it."""
    return next((page for since, page in OPERATORS.get((domain, op), ()) if since <= version), None)


def read_attribute(attribute: AttributeProto, tensor: Callable[[onnx.TensorProto], Any]) -> Any:
    """An attribute's value. tensor: reads one"""
    kind = attribute.type
    if kind == AttributeProto.TENSOR:
        return tensor(attribute.t)
    if kind == AttributeProto.STRING:
        return attribute.s.decode("utf-8", "replace")
    if kind == AttributeProto.STRINGS:
        return [one.decode("utf-8", "replace") for one in attribute.strings]
    plain = {
        AttributeProto.FLOAT: "f", AttributeProto.INT: "i", AttributeProto.GRAPH: "g",
        AttributeProto.FLOATS: "floats", AttributeProto.INTS: "ints", AttributeProto.GRAPHS: "graphs",
    }  # fmt: skip
    if kind not in plain:
        raise BadInput(f"attribute {attribute.name!r} is of a kind that refsd does not read")
    value = getattr(attribute, plain[kind])
    return list(value) if plain[kind].endswith("s") else value


def type_of(array: np.ndarray, inputs: Sequence[np.ndarray | None], types: Sequence[int]) -> int:
    """The element type of a result: of the first float input if it is a float, else that of its dtype."""
    if array.dtype.kind == "f":
        for x, number in zip(inputs, types, strict=True):
            if x is not None and x.dtype.kind == "f":
                return number
    return number_of(array.dtype)
