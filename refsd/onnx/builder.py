"""Build an ONNX model node by node; every value knows its dtype and its shape."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import helper, numpy_helper, shape_inference

from refsd import __version__

# Opset 21 is the first with DequantizeLinear by blocks and GroupNormalization per channel. RMSNormalization,
# RotaryEmbedding and Attention, of opset 23, are composed of older nodes: few engines have them.
OPSET = 21
IR_VERSION = 10
# Shape inference reads constants up to this size: shapes, axes, pads.
_READ = 64

Scalar = float | int


class Value(NamedTuple):
    """A value of the graph. name: unique in it; shape: without unknown dimensions"""

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]


class Builder:
    """An ONNX graph under construction.

    graph: its name
    dtype: of the floats
    notes: key -> text; they become the model's metadata
    outputs_last: matrices in blocks lie as [I, O], as tools write them that quantise for onnxruntime
    quantized: products of integers are written as such tools do
    """

    dtype = np.dtype(np.float32)
    outputs_last = False
    quantized = False

    def __init__(self, graph: str):
        self.graph = graph
        self.notes: dict[str, str] = {}
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._nodes: list[onnx.NodeProto] = []
        self._values: list[onnx.ValueInfoProto] = []
        self._initializers: list[onnx.TensorProto] = []
        self._constants: dict[tuple, Value] = {}
        self._small: dict[str, onnx.TensorProto] = {}
        self._names: set[str] = set()
        self._turned: dict[str, Value] = {}

    def input(self, name: str, dtype: Any, shape: Sequence[int]) -> Value:
        """Add an input of the graph."""
        value = Value(self._unique(name), np.dtype(dtype), tuple(shape))
        self._inputs.append(_info(value))
        return value

    def output(self, value: Value, name: str) -> None:
        """Make a value an output of the graph, under this name."""
        self.node("Identity", value, name=name)
        self._outputs.append(self._values.pop())

    def constant(self, array: np.ndarray, name: str = "") -> Value:
        """Add an initializer. Unnamed ones with the same content are one."""
        array = np.asarray(array)
        key = (array.dtype.str, str(array.dtype), array.shape, array.tobytes()) if not name else (name,)
        if key not in self._constants:
            value = Value(self._unique(name or "constant"), array.dtype, array.shape)
            tensor = numpy_helper.from_array(array, value.name)
            self._initializers.append(tensor)
            if array.size <= _READ:
                self._small[value.name] = tensor
            self._constants[key] = value
        return self._constants[key]

    def node(self, op: str, *inputs: Value | Scalar | Sequence[int] | None, name: str = "", **attributes) -> Value:
        """Add a node and return its first output."""
        return self.nodes(1, op, *inputs, name=name, **attributes)[0]

    def nodes(
        self, count: int, op: str, *inputs: Value | Scalar | Sequence[int] | None, name: str = "", **attributes
    ) -> list[Value]:
        """Add a node and return its first outputs.

        inputs: a number becomes a constant of the first value's dtype, a sequence int64 [n], None an absent input
        name:   of the outputs, for taps; by default after the operator
        """
        dtype = next(x.dtype for x in inputs if isinstance(x, Value))
        values = [None if x is None else self._value(x, dtype) for x in inputs]
        while values[-1] is None:  # onnxruntime 1.32 crashes on the empty name of an absent last input
            values.pop()
        outputs = [self._unique(name or op.lower()) for _ in range(count)]
        node = helper.make_node(op, [x.name if x else "" for x in values], outputs, name=outputs[0], **attributes)
        given = [x for x in values if x is not None]
        inferred = shape_inference.infer_node_outputs(
            onnx.defs.get_schema(op, OPSET),
            node,
            {x.name: helper.make_tensor_type_proto(_element(x.dtype), x.shape) for x in given},
            {x.name: self._small[x.name] for x in given if x.name in self._small},
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
        )
        self._nodes.append(node)
        made = []
        for out in outputs:
            kind = inferred[out].tensor_type
            # GroupNormalization's schema infers no shape; it is that of its input.
            known = kind.HasField("shape")
            shape = tuple(dimension.dim_value for dimension in kind.shape.dim) if known else given[0].shape
            made.append(Value(out, helper.tensor_dtype_to_np_dtype(kind.elem_type), shape))
        self._values += [_info(value) for value in made]
        return made

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        """One of the sizes may be -1."""
        known = math.prod(size for size in shape if size != -1)
        return self.node("Reshape", x, [math.prod(x.shape) // known if size == -1 else size for size in shape])

    def transpose(self, x: Value, axes: Sequence[int]) -> Value:
        if x.name in self._turned and [*axes] == [1, 0]:
            return self._turned[x.name]
        return self.node("Transpose", x, perm=list(axes))

    def turned(self, x: Value) -> Value:
        """The transpose of a matrix, whose own transpose is `x`; a node stands for it only where it is used."""
        value = Value(self._unique(f"{x.name}.turned"), x.dtype, x.shape[::-1])
        self._turned[value.name] = x
        return value

    def is_turned(self, x: Value) -> bool:
        return x.name in self._turned

    def slice(self, x: Value, axis: int, start: int, stop: int) -> Value:
        """x[..., start:stop] of one axis"""
        return self.node("Slice", x, [start], [stop], [axis])

    def halves(self, x: Value) -> tuple[Value, Value]:
        """The first and the second half of the last axis."""
        last, half = len(x.shape) - 1, x.shape[-1] // 2
        return self.slice(x, last, 0, half), self.slice(x, last, half, 2 * half)

    def concat(self, parts: Sequence[Value], axis: int) -> Value:
        return parts[0] if len(parts) == 1 else self.node("Concat", *parts, axis=axis)

    def cast(self, x: Value, dtype: Any) -> Value:
        dtype = np.dtype(dtype)
        return x if x.dtype == dtype else self.node("Cast", x, to=_element(dtype))

    def model(self, metadata: Mapping[str, str] = {}) -> onnx.ModelProto:
        """The model. The notes and `metadata` are its metadata_props."""
        graph = helper.make_graph(
            self._nodes, self.graph, self._inputs, self._outputs, self._initializers, value_info=self._values
        )
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="refsd",
            producer_version=__version__,
        )
        helper.set_model_props(model, {**self.notes, **metadata})
        return model

    def _value(self, x: Value | Scalar | Sequence[int], dtype: np.dtype) -> Value:
        if isinstance(x, Value):
            return self.node("Transpose", self._turned[x.name], perm=[1, 0]) if self.is_turned(x) else x
        return self.constant(np.array(x, np.int64 if isinstance(x, Sequence) else dtype))

    def _unique(self, name: str) -> str:
        """Append a number to a name that the graph has."""
        free, n = name, 1
        while free in self._names:
            n += 1
            free = f"{name}_{n}"
        self._names.add(free)
        return free


def _element(dtype: np.dtype) -> int:
    return helper.np_dtype_to_tensor_dtype(dtype)


def _info(value: Value) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(value.name, _element(value.dtype), value.shape)
