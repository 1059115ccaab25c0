"""Put an exported graph in order: weights become inputs, constants become tensors, numbers are exact."""

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, inliner, numpy_helper, shape_inference

from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT32, FLOAT64
from refsd.onnx.evaluate import evaluate
from refsd.onnx.evaluate.file import Model

# Metadata of a node: the modules that it stands in, as torch's exporter writes them.
SCOPES = "pkg.torch.onnx.name_scopes"
# Ending of the name of a table as float32 computes it.
NEAR = ".float32"
# Metadata of a model: the exact numbers of which its float32 attributes are roundings, as JSON.
NUMBERS = "refsd.numbers"


def tidy(
    model: onnx.ModelProto,
    inputs: Sequence[str],
    outputs: Sequence[str],
    weights: Collection[str],
    numbers: Collection[float],
) -> None:
    """Name inputs and outputs, and mend what the exporter does to numbers and splits.

    inputs, outputs: names in the graph's order
    weights:         inputs of the graph that are none of the module
    numbers:         exact numbers, which the graph may hold as float32 rounds them
    """
    model.CopyFrom(inliner.inline_local_functions(model))
    graph = model.graph
    _forget(model)
    _name(graph, inputs, outputs, weights)
    constants_as_tensors(graph)
    helper.set_model_props(model, {NUMBERS: json.dumps(sorted(numbers))})
    rounded = numbers_of(model)
    for tensor in graph.initializer:
        if tensor.data_type == TensorProto.FLOAT and not tensor.dims:
            right = rounded.get(float(numpy_helper.to_array(tensor)))
            if right is not None:
                tensor.CopyFrom(numpy_helper.from_array(np.array(right), tensor.name))
    model.CopyFrom(shape_inference.infer_shapes(model))
    _mend(model.graph)
    fold(model)


def _forget(model: onnx.ModelProto) -> None:
    """Remove what an exporter notes beside the modules of a node, paths of source files among it."""
    graph = model.graph
    for one in (model, graph, *graph.node, *graph.initializer, *graph.value_info, *graph.input, *graph.output):
        kept = [entry for entry in one.metadata_props if entry.key == SCOPES]
        del one.metadata_props[:]
        one.metadata_props.extend(kept)
        one.ClearField("doc_string")


def lift(graph: onnx.GraphProto, weights: Collection[str]) -> None:
    """Make inputs of those tensors of a graph that are weights."""
    kept = [tensor for tensor in graph.initializer if tensor.name not in weights]
    known = {value.name for value in graph.input}
    for tensor in graph.initializer:
        if tensor.name in weights and tensor.name not in known:
            graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    del graph.initializer[:]
    graph.initializer.extend(kept)


def constants_as_tensors(graph: onnx.GraphProto) -> None:
    """Make tensors of the nodes Constant."""
    kept = []
    for node in graph.node:
        if node.op_type != "Constant":
            kept.append(node)
            continue
        (attribute,) = node.attribute
        value = helper.get_attribute_value(attribute)
        if isinstance(value, TensorProto):
            value.name = node.output[0]
            graph.initializer.append(value)
            continue
        dtype = np.float32 if attribute.name.startswith("value_float") else np.int64
        graph.initializer.append(numpy_helper.from_array(np.asarray(value, dtype), node.output[0]))
    del graph.node[:]
    graph.node.extend(kept)


def fold(model: onnx.ModelProto) -> None:
    """Compute what depends on tensors of the graph alone, and store it as tensors.

    In float64; as an honest engine computes it, in float32, under a name with NEAR where that differs.
    """
    graph = model.graph
    known = {tensor.name for tensor in graph.initializer}
    shapes = {value.name: value.type.tensor_type.shape.dim for value in (*graph.value_info, *graph.input)}
    fixed, rest = [], []
    for node in graph.node:
        dims = [d.dim_value for d in shapes.get(node.input[0], ())] if node.op_type == "Shape" else []
        if dims and all(dims):
            ends = {a.name: a.i for a in node.attribute}
            dims = dims[ends.get("start", 0) : ends.get("end")]
            graph.initializer.append(numpy_helper.from_array(np.array(dims, np.int64), node.output[0]))
            known.update(node.output)
            continue
        constant = all(not name or name in known for name in node.input)
        (fixed if constant else rest).append(onnx.NodeProto.FromString(node.SerializeToString()))
        known.update(node.output if constant else ())
    read = {name for node in rest for name in node.input} | {o.name for o in graph.output}
    part = onnx.ModelProto()
    part.CopyFrom(model)
    del part.graph.node[:], part.graph.output[:], part.graph.input[:]
    part.graph.node.extend(fixed)
    part.graph.output.extend(
        onnx.ValueInfoProto(name=name) for node in fixed for name in node.output if name in read
    )
    of_part = Model(Path("the graph"), part)
    exactly, nearly = (evaluate(of_part, {}, numerics=n, exact=True) for n in (FLOAT64, FLOAT32))
    for name, y in exactly.outputs.items():
        graph.initializer.append(numpy_helper.from_array(np.asarray(y), name))
        near = np.asarray(nearly.outputs[name])
        if near.dtype.kind == "f" and not np.array_equal(near, np.asarray(y, np.float32)):
            graph.initializer.append(numpy_helper.from_array(near, name + NEAR))
    kept = [tensor for tensor in graph.initializer if tensor.name.removesuffix(NEAR) in read]
    del graph.node[:], graph.initializer[:]
    graph.node.extend(rest)
    graph.initializer.extend(kept)


def _name(graph: onnx.GraphProto, inputs: Sequence[str], outputs: Sequence[str], weights: Collection[str]) -> None:
    arguments = [value.name for value in graph.input if value.name not in weights]
    if len(inputs) != len(arguments) or len(outputs) != len(graph.output):
        raise BadInput(
            f"the exporter gives {len(arguments)} inputs and {len(graph.output)} outputs, the module has "
            f"{len(inputs)} and {len(outputs)} tensors: pass tensors that it reads, and no other"
        )
    new = dict(zip(arguments, inputs, strict=True))
    taken = {*inputs, *outputs}
    for node in graph.node:
        new |= {name: f"{name}_" for name in node.output if name in taken}
    for node in graph.node:
        for names in (node.input, node.output):
            names[:] = [new.get(name, name) for name in names]
    for value in (*graph.input, *graph.value_info):
        value.name = new.get(value.name, value.name)
    for value, name in zip(graph.output, outputs, strict=True):
        graph.node.append(helper.make_node("Identity", [new.get(value.name, value.name)], [name], name=name))
        value.name = name


def _mend(graph: onnx.GraphProto) -> None:
    """Replace sequences of parts by a slice for each part, and end a Squeeze of an axis that is not of size 1."""
    shapes = {value.name: value.type for value in graph.value_info}
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    parts: dict[str, tuple[str, int, list[int]]] = {}
    kept: list[Any] = []
    for node in graph.node:
        if node.op_type == "SplitToSequence":
            attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
            axis, x = attributes.get("axis", 0), node.input[0]
            sizes = numpy_helper.to_array(tensors[node.input[1]]) if len(node.input) > 1 else np.array(1)
            dims = [d.dim_value for d in shapes[x].tensor_type.shape.dim]
            n = dims[axis]
            step = int(sizes) if not sizes.ndim else 0
            ends = [min(end, n) for end in range(step, n + step, step)] if step else np.cumsum(sizes).tolist()
            parts[node.output[0]] = x, axis % len(dims), [0, *ends]
        elif node.op_type == "SequenceAt" and node.input[0] in parts:
            x, axis, ends = parts[node.input[0]]
            at = int(numpy_helper.to_array(tensors[node.input[1]])) % (len(ends) - 1)
            given = []
            for field, value in (("starts", ends[at]), ("ends", ends[at + 1]), ("axes", axis)):
                given.append(f"{node.output[0]}.{field}")
                graph.initializer.append(numpy_helper.from_array(np.array([value]), given[-1]))
            piece = helper.make_node("Slice", [x, *given], node.output, name=node.name)
            piece.metadata_props.extend(node.metadata_props)
            kept.append(piece)
        elif node.op_type == "Squeeze" and len(node.input) > 1 and node.input[0] in shapes:
            # torch leaves an axis that is not of size 1 as it is; ONNX refuses it
            dims = [d.dim_value for d in shapes[node.input[0]].tensor_type.shape.dim]
            axes = numpy_helper.to_array(tensors[node.input[1]]).reshape(-1) if node.input[1] in tensors else ()
            if any(dims[axis] != 1 for axis in axes):
                node.op_type = "Identity"
                del node.input[1:]
            kept.append(node)
        else:
            kept.append(node)
    del graph.node[:]
    graph.node.extend(kept)


def exact(number: float, numbers: Mapping[float, float]) -> float:
    """Return the number that a float32 attribute is a rounding of: a known one, or the shortest decimal."""
    rounded = np.float32(number)
    return numbers.get(float(rounded), float(str(rounded)))


def numbers_of(model: onnx.ModelProto) -> dict[float, float]:
    """Return the exact numbers of a model by their float32 values."""
    text = next((entry.value for entry in model.metadata_props if entry.key == NUMBERS), "[]")
    return {float(np.float32(x)): x for x in json.loads(text) if abs(x) < 3e38}
