"""A graph by its values: what makes each, what reads it, and whether numbers only move on the way to it."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from refsd.adoption.tidying import exact, numbers_of
from refsd.onnx.evaluate import evaluate
from refsd.onnx.evaluate.file import Model

# Nodes through which a value passes unchanged, whatever its width.
_PASSED = ("Cast", "CastLike", "Identity")
# Nodes that move numbers, or turn their signs; what they have beside the numbers is constant.
_MOVING = (
    *("Reshape", "Transpose", "Slice", "Split", "Gather", "Unsqueeze", "Squeeze", "Flatten", "Expand"),
    *("Concat", "Neg", "Identity", "Cast"),
)
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16)


class View:
    """A graph by its values: which node makes each, which read it, and the tensors among them."""

    def __init__(self, model: onnx.ModelProto):
        self._model, graph = model, model.graph
        self.nodes, self.numbers = list(graph.node), numbers_of(model)
        self.maker = {name: node for node in self.nodes for name in node.output}
        self._readers: dict[str, list[str]] = {}
        for node in self.nodes:
            for name in node.input:
                self._readers.setdefault(name, []).append(node.output[0])
        self._outputs = {o.name for o in graph.output}
        self._tensors = {tensor.name: tensor for tensor in graph.initializer}
        self.inputs = {value.name for value in graph.input}
        values = (*graph.value_info, *graph.input, *graph.output)
        self._types = {value.name: value.type.tensor_type.elem_type for value in values}
        self._types |= {name: tensor.data_type for name, tensor in self._tensors.items()}
        self._dims = {
            value.name: tuple(d.dim_value or -1 for d in value.type.tensor_type.shape.dim)
            for value in values
            if value.type.tensor_type.HasField("shape")
        } | {name: tuple(tensor.dims) for name, tensor in self._tensors.items()}
        self._ways: dict[Any, bool] = {}

    def rank(self, name: str) -> int:
        return len(self._dims[name]) if name in self._dims else -1

    def dims(self, name: str) -> tuple[int, ...]:
        """Return a value's shape, -1 for an axis whose size is not known; () if nothing is known."""
        return self._dims.get(name, ())

    def stands_as(self, name: str, source: str, wanted: Callable[[np.ndarray], np.ndarray]) -> bool:
        """Return True if a value is moved from another alone, and is `wanted` of it: tried with numbers."""
        nodes: dict[str, onnx.NodeProto] = {}
        tensors: dict[str, onnx.TensorProto] = {}

        def visit(name: str) -> bool:
            if name in self._tensors:
                tensors[name] = self._tensors[name]
            if not name or name == source or name in nodes or name in tensors:
                return True
            node = self.maker.get(name)
            if node is None or node.op_type not in _MOVING or not all(map(visit, node.input)):
                return False
            nodes.update(dict.fromkeys(node.output, node))
            return True

        dims = self.dims(source)
        if len(dims) < 2 or min(dims) < 1 or dims[-1] % 2 or not visit(name) or not nodes:
            return False
        # The way of another block is the same but for the names.
        names = {"": ""} | {name: str(i) for i, name in enumerate((source, *tensors, *nodes))}
        graph = onnx.GraphProto(name="way", output=[onnx.ValueInfoProto(name=names[name])])
        graph.input.append(helper.make_tensor_value_info(names[source], TensorProto.DOUBLE, dims))
        for tensor in tensors.values():
            graph.initializer.append(tensor)
            graph.initializer[-1].name = names[tensor.name]
        for node in {node.output[0]: node for node in nodes.values()}.values():
            step = helper.make_node(node.op_type, [names[n] for n in node.input], [names[n] for n in node.output])
            step.attribute.extend(node.attribute)
            graph.node.append(step)
        key = graph.SerializeToString(), wanted
        if key not in self._ways:
            rows = np.arange(np.prod(dims[:-1], dtype=np.int64)).reshape(*dims[:-1], 1)
            x = rows % 997 * dims[-1] + np.arange(1, dims[-1] + 1)
            versions = {"ir_version": self._model.ir_version, "opset_import": self._model.opset_import}
            way = Model(Path("the graph"), onnx.ModelProto(graph=graph, **versions))
            (y,) = evaluate(way, {names[source]: x}, exact=True).outputs.values()
            self._ways[key] = np.array_equal(y, wanted(x))
        return self._ways[key]

    def is_float(self, name: str) -> bool:
        return self._types.get(name, TensorProto.FLOAT) in _FLOATS

    def is_weighted(self, name: str) -> bool:
        """Return True if a value is multiplied by a vector, and no other node reads it."""
        readers = [self.maker[reader] for reader in self._readers.get(name, ())]
        if len(readers) != 1:
            return False
        if readers[0].op_type in _PASSED:
            return self.is_weighted(readers[0].output[0])
        return readers[0].op_type == "Mul" and any(
            self.rank(other) == 1 for other in readers[0].input if other != name
        )

    def attribute(self, node: onnx.NodeProto, name: str, default: Any = None) -> Any:
        """Return an attribute, floats exact."""
        value = next((helper.get_attribute_value(a) for a in node.attribute if a.name == name), default)
        if isinstance(value, float):
            return exact(value, self.numbers)
        return value.decode() if isinstance(value, bytes) else value

    def number(self, name: str) -> float | None:
        """Return the value of a constant that is one number."""
        tensor = self._tensors.get(self.origin(name))
        if tensor is None or any(n != 1 for n in tensor.dims):
            return None
        return float(numpy_helper.to_array(tensor).reshape(()))

    def origin(self, name: str) -> str:
        """Return the value that passes unchanged to this one."""
        return self.maker[chain[-1]].input[0] if (chain := self.between(name)) else name

    def between(self, name: str) -> list[str]:
        """Return the values on the way from its origin to this one, without the origin."""
        names = []
        while name in self.maker and self.maker[name].op_type in _PASSED and self.is_float(name):
            names.append(name)
            name = self.maker[name].input[0]
        return names

    def made_by(self, name: str, *ops: str) -> onnx.NodeProto | None:
        """Return the node that makes a value, or its origin, if it is one of these."""
        node = self.maker.get(self.origin(name))
        return node if node is not None and node.op_type in ops else None

    def either(self, node: onnx.NodeProto) -> Iterator[tuple[str, str]]:
        """Yield both orders of a node's two inputs."""
        first, second = node.input[:2]
        yield first, second
        yield second, first

    def is_private(self, inner: Sequence[str], last: onnx.NodeProto, group: Sequence[str] = ()) -> bool:
        """Return True if nothing but these nodes, the last and those of `group` reads these values."""
        names = {*inner, *group, last.output[0]}
        return all(name not in self._outputs and names.issuperset(self._readers.get(name, ())) for name in inner)
