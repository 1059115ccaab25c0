"""A case of a model as an ONNX graph with what it is fed."""

import functools
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from refsd.components import COMPONENTS, load
from refsd.golden.case import Case, ModelRecipe
from refsd.golden.engine import ModelFiles
from refsd.golden.judge import Inputs
from refsd.models.catalogue import NETWORKS
from refsd.module import WeightCache
from refsd.networks.component import MASK
from refsd.onnx.case_model import CaseModel
from refsd.onnx.trace.arithmetic import TracingArithmetic
from refsd.onnx.trace.array import Graph, Traced
from refsd.onnx.trace.module import TapNames, TracingModule
from refsd.weights.checkpoint import open_checkpoint
from refsd.weights.recipes import size_of

_PREFIX = "model/"
# Bytes of an element of a type that the graph keeps.
_NARROW = {"f16": 2.0, "bf16": 2.0, "f8_e4m3": 1.0, "f8_e5m2": 1.0, "q8_0": 1.125, "q4_0": 0.625}


def refuses(case: Case) -> str | None:
    """Why a case of a model has no graph; None if it has one."""
    if not case.op.startswith(_PREFIX) or case.op.removeprefix(_PREFIX) not in COMPONENTS:
        return f"{case.op} is no component of a model"
    return None


@functools.cache
def bytes_of_weights(op: str, model: ModelRecipe) -> int:
    """Estimate the weights of a case's graph: large matrices in their type if ONNX has it, else in float32."""
    component, narrow = COMPONENTS[op.removeprefix(_PREFIX)].part or "", _NARROW.get(model.type, 4.0)
    sizes = NETWORKS[component].shapes(size_of(model, component)).values()
    return int(sum((narrow if len(shape) > 1 else 4) * math.prod(shape) for shape in sizes))


def model_graph(
    case: Case,
    inputs: Inputs,
    model_files: ModelFiles | None,
    dtype: Any = np.float32,
    taps: bool = False,
    forced: Mapping[str, np.ndarray] = MappingProxyType({}),
    outputs_last: bool = False,
) -> CaseModel:
    """Trace the component of a case; values are named as the reference's taps.

    Masks, positions, and ids that say where pictures stand are constants of the graph, because they decide shapes
    and angles; everything else is an input.

    dtype:  of the floats: float32, or float64 to hold the graph against the truth
    taps:   make every tap an output too; the taps stand behind the outputs of the case
    forced: tap -> the tensor from which the graph goes on in its place; it becomes an input of the graph
    outputs_last: as in Builder
    """
    name = case.op.removeprefix(_PREFIX)
    component = COMPONENTS[name]
    graph = Graph(case.name, np.dtype(dtype))
    graph.outputs_last = outputs_last
    arithmetic = TracingArithmetic(graph)
    values = {argument: np.asarray(tensor.values()) for argument, tensor in inputs.items()}
    if component.part is None:
        weights, params = {key: tensor for key, tensor in inputs.items() if "." in key}, dict(case.params)
    else:
        assert case.model is not None and model_files is not None
        opened, config = load(open_checkpoint(model_files(case.model, "ldm")), name, arithmetic)
        weights, params = opened.weights, {**config, **case.params}
    names = TapNames(graph, forced)
    m = TracingModule(weights, arithmetic, taps=names, cache=WeightCache())
    arguments: dict[str, Any] = {}
    feeds: dict[str, np.ndarray] = {}
    for argument, wanted in component.arguments.items():
        if argument not in values:
            continue
        if wanted.kind is MASK or wanted.fixed or (argument == "input_ids" and "pictures" in values):
            graph.notes[f"constant.{argument}"] = "a constant of this graph, whose shapes and positions it decides"
            x = values[argument]
            arguments[argument] = x if x.dtype.kind == "f" else x.astype(np.int64)
            continue
        x = values[argument]
        feeds[argument] = x.astype(graph.dtype if x.dtype.kind == "f" else np.int64)
        arguments[argument] = Traced(graph, graph.input(argument, feeds[argument].dtype, x.shape))
    y = component.run(m, **arguments, **{**component.params, **params})
    if not isinstance(y, dict):
        outputs = y if isinstance(y, tuple) else (y,)
        y = dict(zip([*component.outputs, *component.also], outputs, strict=True))
    for output, value in y.items():
        if output not in component.also:
            graph.output(value.value, output)
    if taps:
        for value in names.values.values():
            graph.also_output(value)
    return CaseModel(
        graph.model({"refsd.case": case.name}),
        {**feeds, **names.feeds},
        [value.name for value in names.values.values()] if taps else (),
    )
