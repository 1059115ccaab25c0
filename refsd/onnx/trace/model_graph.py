"""A case of a model as an ONNX graph with what it is fed."""

from typing import Any

import numpy as np

from refsd.components import COMPONENTS, load
from refsd.components.component import MASK
from refsd.golden.case import Case
from refsd.golden.engine import ModelFiles
from refsd.golden.judge import Inputs
from refsd.module import WeightCache
from refsd.onnx.case_model import CaseModel
from refsd.onnx.trace.arithmetic import TracingArithmetic
from refsd.onnx.trace.array import Graph, Traced
from refsd.onnx.trace.module import TapNames, TracingModule
from refsd.weights.checkpoint import open_checkpoint

_PREFIX = "model/"


def refuses(case: Case) -> str | None:
    """Why a case of a model has no graph; None if it has one."""
    if not case.op.startswith(_PREFIX) or case.op.removeprefix(_PREFIX) not in COMPONENTS:
        return f"{case.op} is no component of a model"
    return None


def model_graph(
    case: Case, inputs: Inputs, model_files: ModelFiles, dtype: Any = np.float32, taps: bool = False
) -> CaseModel:
    """Trace the component of a case; values are named as the reference's taps.

    Masks are constants of the graph, because they decide shapes and positions; everything else is an input.

    dtype: of the floats: float32, or float64 to hold the graph against the truth
    taps:  make every tap an output too
    """
    name = case.op.removeprefix(_PREFIX)
    component = COMPONENTS[name]
    graph = Graph(case.name, np.dtype(dtype))
    arithmetic = TracingArithmetic(graph)
    values = {argument: np.asarray(tensor.values()) for argument, tensor in inputs.items()}
    if component.part is None:
        weights, params = {key: tensor for key, tensor in inputs.items() if "." in key}, dict(case.params)
    else:
        assert case.model is not None
        opened, config = load(open_checkpoint(model_files(case.model, "ldm")), name, arithmetic)
        weights, params = opened.weights, {**config, **case.params}
    names = TapNames(graph)
    m = TracingModule(weights, arithmetic, taps=names, cache=WeightCache())
    arguments: dict[str, Any] = {}
    feeds: dict[str, np.ndarray] = {}
    for argument, wanted in component.arguments.items():
        if argument not in values:
            continue
        if wanted.kind is MASK:
            graph.notes[f"constant.{argument}"] = "a mask, which is a constant of this graph"
            arguments[argument] = values[argument].astype(np.int64)
            continue
        x = values[argument]
        feeds[argument] = x.astype(graph.dtype if x.dtype.kind == "f" else np.int64)
        arguments[argument] = Traced(graph, graph.input(argument, feeds[argument].dtype, x.shape))
    y = component.run(m, **arguments, **{**component.params, **params})
    if not isinstance(y, dict):
        outputs = y if isinstance(y, tuple) else (y,)
        y = dict(zip([*component.outputs, *component.also], outputs, strict=True))
    for output in component.outputs:
        graph.output(y[output].value, output)
    if taps:
        for value in names.values.values():
            graph.also_output(value)
    return CaseModel(graph.model({"refsd.case": case.name}), feeds)
