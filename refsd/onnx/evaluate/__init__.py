"""Evaluate an ONNX graph in float64: the truth of a graph that somebody else wrote."""

import warnings
from collections.abc import Callable, Container, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

import refsd.onnx.evaluate.operators  # noqa: F401 (registers them)
from refsd.golden.wording import did_you_mean
from refsd.numerics.errors import BadInput
from refsd.numerics.machine import memory, one_answer
from refsd.numerics.profiles import FLOAT32, FLOAT64, Numerics
from refsd.onnx.evaluate.budget import SECONDS, Budget
from refsd.onnx.evaluate.check import check
from refsd.onnx.evaluate.element_types import ELEMENT_TYPES
from refsd.onnx.evaluate.evaluation import Evaluation, Value, Weight
from refsd.onnx.evaluate.file import Model, open_model
from refsd.onnx.evaluate.node import OPERATORS, Rules
from refsd.taps import Taps

NUMERICS = {numerics.name: numerics for numerics in (FLOAT64, FLOAT32)}


class Expected(NamedTuple):
    """An input as a graph declares it. shape: numbers, names of free axes, or None for an axis without a name"""

    name: str
    number: int
    shape: tuple[int | str | None, ...] | None
    optional: bool

    def shown(self) -> str:
        shape = "any shape" if self.shape is None else f"[{', '.join(str(n or '?') for n in self.shape)}]"
        return f"{ELEMENT_TYPES[self.number].name} {shape}"


class Results(NamedTuple):
    """
    types: output -> its declared element type
    peak:  bytes of all values that were alive at once
    """

    outputs: dict[str, np.ndarray]
    types: dict[str, str]
    nodes: int
    peak: int


def open_graph(path: Path) -> Model:
    """Read and check a file. Raises BadInput, in one line, for one that cannot be evaluated."""
    model = open_model(path)
    check(model)
    try:
        for tensor in model.proto.graph.initializer:
            model.tensor(tensor)
        expected_inputs(model)
    except BadInput as error:
        text = str(error)
        raise BadInput(text if text.startswith(f"{path.parent}") else f"{path}: {text}") from None
    return model


def expected_inputs(model: Model) -> list[Expected]:
    """The inputs of the graph. Those that are tensors of the file too may be left out."""
    graph = model.proto.graph
    stored = {tensor.name for tensor in graph.initializer}
    found = []
    for value in graph.input:
        if not value.type.HasField("tensor_type") or value.type.tensor_type.elem_type not in ELEMENT_TYPES:
            raise BadInput(f"input {value.name!r} is no tensor of numbers")
        tensor = value.type.tensor_type
        shape = None
        if tensor.HasField("shape"):
            shape = tuple(d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in tensor.shape.dim)
        found.append(Expected(value.name, tensor.elem_type, shape, value.name in stored))
    return found


def evaluate(
    model: Model,
    inputs: Mapping[str, np.ndarray],
    taps: Taps | None = None,
    numerics: Numerics = FLOAT64,
    exact: bool = False,
    limit: int | None = None,
    seconds: float = SECONDS,
    weights: Mapping[str, Callable[[], np.ndarray]] | None = None,
) -> Results:
    """Evaluate a graph from `open_graph`.

    inputs:   arrays by name; floats of any width
    taps:     record the outputs of nodes under their names
    numerics: FLOAT64, or FLOAT32 for an honest run
    exact:    ignore casts between floats of 16 bits and more
    limit:    bytes that values may take at once; None: half of the memory
    seconds:  that it may take
    weights:  inputs that are read where they are used, one at a time

    Raises BadInput for inputs that do not fit, and for a node that cannot run.
    """
    rules = Rules(numerics.compute_dtype, exact)
    budget = Budget(memory() // 2 if limit is None else limit, seconds)
    read = weights or {}
    lazily = [
        Weight(one.name, tuple(n for n in one.shape or () if isinstance(n, int)), one.number, read[one.name])
        for one in expected_inputs(model)
        if one.name in read
    ]
    admitted = _admit(model, inputs, rules, budget, read)
    run = Evaluation(model, rules, budget, Taps("") if taps is None else taps)
    # NumPy warns of means of nothing, whatever errstate says.
    quiet = warnings.catch_warnings(action="ignore", category=RuntimeWarning)
    with one_answer(numerics), np.errstate(all="ignore"), quiet:
        outputs = run.run(admitted, lazily)
    return Results(
        {
            name: np.ascontiguousarray(value.array) if value.array.ndim else value.array
            for name, value in outputs.items()
        },
        {name: ELEMENT_TYPES[value.number].name for name, value in outputs.items()},
        budget.nodes,
        budget.peak,
    )


def _admit(
    model: Model, inputs: Mapping[str, np.ndarray], rules: Rules, budget: Budget, read: Container[str]
) -> dict[str, Value]:
    expected = {one.name: one for one in expected_inputs(model)}
    for name in inputs:
        if name not in expected:
            meant = did_you_mean(name, expected)
            raise BadInput(f"{model.path}: no input is called {name!r}{meant}; there are {', '.join(expected)}")
    sizes: dict[str, int] = {}
    admitted = {}
    for name, one in expected.items():
        if name not in inputs:
            if one.optional or name in read:
                continue
            raise BadInput(f"{model.path}: the input {name!r} is missing: {one.shown()}")
        x = np.asarray(inputs[name])
        said = f"{model.path}: input {name!r} is {x.dtype} {list(x.shape)}, {one.shown()} expected"
        if one.shape is not None:
            if len(one.shape) != x.ndim:
                raise BadInput(said)
            for size, n in zip(one.shape, x.shape, strict=True):
                if size is not None and (sizes.setdefault(size, n) if isinstance(size, str) else size) != n:
                    raise BadInput(said)
        try:
            budget.room(x.shape, rules.dtype.itemsize)
        except BadInput as error:
            raise BadInput(f"{model.path}: input {name!r}: {error}") from None
        admitted[name] = Value(_as_declared(x, one.number, rules, said), one.number)
    return admitted


def _as_declared(x: np.ndarray, number: int, rules: Rules, said: str) -> np.ndarray:
    """Floats in the evaluation's dtype, whatever their width; integers of another width if they fit."""
    kind = ELEMENT_TYPES[number]
    whole = x.dtype.kind in "iub"
    if kind.is_float:
        return x.astype(rules.dtype, copy=False)
    y = x.astype(kind.held, copy=False) if whole else x
    if not whole or (y != x).any():
        raise BadInput(said)
    return y


__all__ = [
    "ELEMENT_TYPES",
    "NUMERICS",
    "OPERATORS",
    "Expected",
    "Results",
    "evaluate",
    "expected_inputs",
    "open_graph",
]
