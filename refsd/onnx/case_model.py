"""A case of an operation as an ONNX model with what it is fed."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import onnx

from refsd.golden import operations
from refsd.golden.case import Case
from refsd.golden.operations.linear_w4a16 import codes
from refsd.numerics.tensor import Scaling, StoredTensor, stored
from refsd.onnx.builder import Builder, Value
from refsd.onnx.operations import FUNCTIONS
from refsd.onnx.weights import groups_of_4_bits, is_said, weight

# Arguments that a model has from its file: initializers of the graph. Every other is an input of it.
WEIGHTS = frozenset(
    (
        *("weight", "bias", "mean", "var", "sinks", "up", "down", "w1", "w1_a", "w1_b", "w2", "w2_a", "w2_b"),
        *("weight_scale", "weight_zero", "x_scale", "x_zero", "y_scale", "y_zero"),
    )
)
# A linear layer that is quantised dynamically, as parameters of linear_int8.
_DYNAMIC = {"scales": "tensor", "rotation": 0, "zero_point": True}


class CaseModel(NamedTuple):
    """
    model: its inputs are the case's that are no weights; the output of an operation is "y", float32
    feeds: input -> array
    taps:  those that are outputs of the graph, behind the case's own
    """

    model: onnx.ModelProto
    feeds: dict[str, np.ndarray]
    taps: Sequence[str] = ()


def refuses(case: Case) -> str | None:
    """Say why a case cannot be written in ONNX; None if it can."""
    if case.op not in FUNCTIONS:
        return f"refsd writes no {case.op} in ONNX"
    if case.op == "dequantize" and not is_said(case.inputs["x"].type):
        return f"ONNX has no {case.inputs['x'].type}"
    return None


def case_model(
    case: Case, inputs: Mapping[str, StoredTensor], outputs_last: bool = False, quantized: bool = False
) -> CaseModel:
    """Build the model of a case that can be written in ONNX. inputs: realised

    outputs_last: as in Builder; quantized, too, and linear layers of scaled int8 are quantised dynamically
    """
    b = Builder(case.name)
    b.outputs_last, b.quantized = outputs_last, quantized
    op, params = case.op, operations.complete(case.op, inputs, case.params)
    if quantized and op == "linear" and (scale := _scale_of_int8(inputs["weight"])) is not None:
        inputs = {**inputs, "weight": inputs["weight"]._replace(scaling=None), "weight_scale": stored(scale)}
        op, params = "linear_int8", _DYNAMIC
    feeds: dict[str, np.ndarray] = {}
    values: dict[str, Value] = {}
    if op == "linear_w4a16":
        values["weight"] = groups_of_4_bits(b, codes(inputs, params))
        inputs = {name: tensor for name, tensor in inputs.items() if name in ("x", "bias")}
    for name, tensor in inputs.items():
        if name in WEIGHTS or op == "dequantize":
            values[name] = weight(b, name, tensor)
            continue
        feeds[name] = np.asarray(tensor.values(), order="C")
        given = b.input(name, feeds[name].dtype, tensor.shape)
        values[name] = b.cast(given, np.float32) if feeds[name].dtype.kind == "f" else given
    b.output(FUNCTIONS[op](b, values, params), "y")
    return CaseModel(b.model({"refsd.case": case.name}), feeds)


def _scale_of_int8(weight: StoredTensor) -> np.ndarray | None:
    """Return the scale of a matrix of int8 or of its rows; None if it has others, or is rotated."""
    scaling = weight.scaling
    if weight.type != "i8" or not isinstance(scaling, Scaling) or scaling.scale.ndim > 1 or scaling.rotation:
        return None
    return scaling.scale * np.float32(scaling.unit)
