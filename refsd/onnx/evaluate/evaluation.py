"""Evaluate a graph: node after node, each value dropped after its last use."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np
import onnx

from refsd.numerics.errors import BadInput
from refsd.onnx.evaluate.budget import Budget
from refsd.onnx.evaluate.check import DEEPEST, body_schema, called, not_run
from refsd.onnx.evaluate.element_types import ELEMENT_TYPES, ElementType
from refsd.onnx.evaluate.file import Model, Tensor, subgraphs
from refsd.onnx.evaluate.node import Node, Rules, find, read_attribute, type_of
from refsd.taps import Taps

_FAULTS = (ValueError, TypeError, IndexError, KeyError, OverflowError, ZeroDivisionError, AttributeError)


class Value(NamedTuple):
    """number: the declared element type; the array of a float has the evaluation's dtype"""

    array: np.ndarray
    number: int


class Weight(NamedTuple):
    """An input that is read where it is used, and not kept, as a Tensor of the file is.

    number: its element type; read: returns its values
    """

    name: str
    shape: tuple[int, ...]
    number: int
    read: Callable[[], np.ndarray]

    @property
    def kind(self) -> ElementType:
        return ELEMENT_TYPES[self.number]

    def values(self) -> np.ndarray:
        return self.read()


class Scope:
    """Values by name within one graph; names of the graphs around it are seen too.

    Weights stay in the file until they are used, and are not kept.
    """

    def __init__(self, run: "Evaluation", uses: Counter[str], around: "Scope | None" = None, prefix: str = ""):
        self._run, self._uses, self._around, self.prefix = run, uses, around, prefix
        self._values: dict[str, Value] = {}
        self._tensors: dict[str, Tensor | Weight] = {}
        self.absent: set[str] = set()  # inputs of a function that its caller leaves out

    def get(self, name: str) -> Value:
        scope: Scope | None = self
        while scope is not None:
            if name in scope._values:
                return scope._values[name]
            if name in scope._tensors:
                return self._run.expand(scope._tensors[name])
            scope = scope._around
        raise BadInput(f"{name!r} has no value")

    def set(self, name: str, value: Value) -> None:
        if name and self._uses[name]:
            self._run.budget.take(value.array.nbytes)
            self._values[name] = value

    def add_tensor(self, tensor: Tensor | Weight) -> None:
        if tensor.name not in self._values:
            self._tensors[tensor.name] = tensor

    def used(self, names: Iterable[str]) -> None:
        """Count one use of each name; drop what nobody uses again."""
        for name in names:
            self._uses[name] -= 1
            if not self._uses[name] and name in self._values:
                self._run.budget.give_back(self._values.pop(name).array.nbytes)

    def close(self) -> None:
        for value in self._values.values():
            self._run.budget.give_back(value.array.nbytes)
        self._values.clear()


class Evaluation:
    """One run of a model's graph.

    taps: record each node's outputs under their names; those inside a function have its node's name before them
    """

    def __init__(self, model: Model, rules: Rules, budget: Budget, taps: Taps):
        self.model, self.rules, self.budget, self._taps = model, rules, budget, taps
        self._depth = 0

    def expand(self, tensor: Tensor | Weight) -> Value:
        """Read a tensor of the file, floats as the evaluation's dtype."""
        self.budget.room(tensor.shape, self.rules.dtype.itemsize if tensor.kind.is_float else 8)
        array = tensor.values()
        dtype = self.rules.dtype if tensor.kind.is_float else tensor.kind.held
        return Value(np.asarray(array, dtype), tensor.number)

    def run(self, inputs: Mapping[str, Value], weights: Iterable[Weight] = ()) -> dict[str, Value]:
        """Evaluate the graph. -> its outputs by name. Raises BadInput with the node's name where it cannot."""
        graph = self.model.proto.graph
        scope = Scope(self, uses_of(graph.node, (o.name for o in graph.output)))
        for weight in weights:
            scope.add_tensor(weight)
        for name, value in inputs.items():
            scope.set(name, value)
        for tensor in graph.initializer:
            if tensor.name not in inputs:
                scope.add_tensor(self.model.tensor(tensor))
        self._run_nodes(graph.node, scope, self.model.opsets)
        return {output.name: scope.get(output.name) for output in graph.output}

    def _run_nodes(self, nodes, scope: Scope, versions: Mapping[str, int], given: Mapping[str, Any] | None = None):
        for number, node in enumerate(nodes):
            self.budget.step()
            try:
                self._run_node(node, scope, versions, given or {})
            except BadInput as error:
                raise self._named(node, number, error) from None
            except MemoryError:
                raise self._named(node, number, "not enough memory") from None
            except RecursionError:
                raise self._named(node, number, "nested too deep") from None
            except _FAULTS as error:
                raise self._named(node, number, " ".join(str(error).split()) or type(error).__name__) from None
            scope.used(self._reads(node))

    def _reads(self, node: onnx.NodeProto) -> Sequence[str]:
        """Return what a node that has run has read. One who runs a graph often knows it beforehand."""
        return reads(node)

    def _named(self, node: onnx.NodeProto, number: int, error: object) -> BadInput:
        text = str(error)
        start = f"{self.model.path}: "
        return BadInput(f"{start}{called(node, number)}: {text.removeprefix(start)}")

    def _run_node(self, proto: onnx.NodeProto, scope: Scope, versions: Mapping[str, int], given) -> None:
        values = [scope.get(name) if name and name not in scope.absent else None for name in proto.input]
        outputs = self.compute(proto, values, scope, versions, given)
        for name, value in zip(proto.output, outputs, strict=False):
            if name and value is not None:
                scope.set(name, self._tap(scope.prefix + name, value))

    def compute(
        self,
        proto: onnx.NodeProto,
        values: Sequence[Value | None],
        scope: Scope,
        versions: Mapping[str, int],
        given: Mapping[str, Any],
    ) -> list[Value | None]:
        """Return the outputs of a node. values: its inputs; None for one that is left out"""
        domain = "" if proto.domain == "ai.onnx" else proto.domain
        attributes = {a.name: read_attribute(a, self._tensor) for a in proto.attribute if not a.ref_attr_name}
        attributes |= {
            a.name: given[a.ref_attr_name] for a in proto.attribute if a.ref_attr_name and a.ref_attr_name in given
        }
        function = self.model.functions.get((domain, proto.op_type, getattr(proto, "overload", "")))
        if function is not None:
            return self._call(function, values, attributes, scope, proto)
        page = find(domain, proto.op_type, versions[domain])
        if page is None:
            body, defaults = self._body(proto, domain, versions[domain], values, given)
            return self._call(body, values, {**defaults, **attributes}, scope, proto, taps=False)
        node = Node(
            proto, versions[domain], self.rules, self.budget, attributes,
            [value.number if value else 0 for value in values],
            lambda graph, arrays: self._run_graph(graph, arrays, scope, versions, given),
        )  # fmt: skip
        arrays = [value.array if value else None for value in values]
        made = page(node, *arrays)
        made = made if isinstance(made, tuple) else (made,)
        return [self._value(node, y, arrays) for y in made]

    def _value(self, node: Node, y: Any, inputs: Sequence[np.ndarray | None]) -> Value:
        array = np.asarray(y)
        if array.dtype.kind == "f":
            array = array.astype(self.rules.dtype, copy=False)
        number = type_of(array, inputs, node.types) if node.output_type is None else node.output_type
        if array.dtype.kind == "f" and not ELEMENT_TYPES[number].is_float:
            number = type_of(array, (), ())
        return Value(array, number)

    def _tensor(self, proto: onnx.TensorProto) -> Value:
        return self.expand(self.model.tensor(proto))

    def _tap(self, name: str, value: Value) -> Value:
        before = len(self._taps)
        self._taps.record(name, value.array)
        if len(self._taps) > before:
            self.budget.take(value.array.nbytes)
            self.budget.room((), 0)
        return value

    def _run_graph(self, graph: onnx.GraphProto, arrays, around: Scope, versions, given) -> list[np.ndarray]:
        """Run a graph within a node, which sees the names around it."""
        scope = Scope(self, uses_of(graph.node, (o.name for o in graph.output)), around, around.prefix)
        for value, array in zip(graph.input, arrays, strict=True):
            scope.set(value.name, Value(array, value.type.tensor_type.elem_type or type_of(array, (), ())))
        for tensor in graph.initializer:
            scope.add_tensor(self.model.tensor(tensor))
        self._run_nodes(graph.node, scope, versions, given)
        outputs = [scope.get(output.name).array for output in graph.output]
        scope.close()
        return outputs

    def _call(self, function: onnx.FunctionProto, values, attributes, around: Scope, proto, taps=True):
        """Run a function's nodes. They see nothing but its inputs."""
        if self._depth > DEEPEST:
            raise BadInput(f"functions call each other more than {DEEPEST} deep")
        defaults = {a.name: read_attribute(a, self._tensor) for a in function.attribute_proto}
        versions = {**self.model.opsets, **{opset.domain or "": opset.version for opset in function.opset_import}}
        prefix = f"{around.prefix}{proto.name or proto.output[0]}/"
        scope = Scope(self, uses_of(function.node, function.output), prefix=prefix)
        for name, value in zip_longest(function.input, values):
            if value is None:
                scope.absent.add(name)
            else:
                scope.set(name, value)
        self._depth += 1
        kept = self._taps
        self._taps = kept if taps else Taps("")
        try:
            self._run_nodes(function.node, scope, versions, {**defaults, **attributes})
        finally:
            self._depth -= 1
            self._taps = kept
        names = [name for name, wanted in zip(function.output, proto.output, strict=False) if wanted]
        outputs = {name: scope.get(name) for name in names}
        scope.close()
        return [outputs.get(name) for name in function.output]

    def _body(self, proto: onnx.NodeProto, domain: str, version: int, values, given: Mapping[str, Any]):
        """ONNX's definition of an operator by others, and the defaults of its attributes."""
        schema = body_schema(domain, proto.op_type, version)
        if schema is None:  # `check` has not seen the nodes of a definition that depends on its inputs
            raise BadInput(not_run(domain, proto.op_type, version))
        defaults = {
            name: read_attribute(attribute.default_value, self._tensor)
            for name, attribute in schema.attributes.items()
            if attribute.default_value.type
        }
        if schema.has_function:
            return schema.function_body, defaults
        types = [_type_proto(value) for value in values]
        content = schema.get_context_dependent_function(_resolved(proto, given).SerializeToString(), types)
        return onnx.FunctionProto.FromString(content), defaults


def _resolved(proto: onnx.NodeProto, given: Mapping[str, Any]) -> onnx.NodeProto:
    """A node with the values of its function's attributes in place of their names."""
    if not any(attribute.ref_attr_name for attribute in proto.attribute):
        return proto
    node = onnx.NodeProto()
    node.CopyFrom(proto)
    del node.attribute[:]
    for attribute in proto.attribute:
        if not attribute.ref_attr_name:
            node.attribute.append(attribute)
        elif attribute.ref_attr_name in given:
            node.attribute.append(onnx.helper.make_attribute(attribute.name, given[attribute.ref_attr_name]))
    return node


def _type_proto(value: Value | None) -> bytes:
    if value is None:
        return onnx.TypeProto().SerializeToString()
    return onnx.helper.make_tensor_type_proto(value.number, value.array.shape).SerializeToString()


def uses_of(nodes: Iterable[onnx.NodeProto], outputs: Iterable[str]) -> Counter[str]:
    """How often each name is read: by nodes, by graphs within them, and as an output."""
    uses: Counter[str] = Counter(outputs)
    for node in nodes:
        uses.update(reads(node))
    return uses


def reads(node: onnx.NodeProto) -> list[str]:
    """Names that a node reads, those that the graphs within it read among them."""
    names = [*node.input]
    for graph in subgraphs(node):
        names += [output.name for output in graph.output]
        for inner in graph.node:
            names += reads(inner)
    return names
