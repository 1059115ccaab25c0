"""Declare a stage between prompt, files and picture: inputs, outputs with their bounds, rule, known bugs, cases."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import numpy as np

from refsd.golden.case import Case
from refsd.golden.judge import Mutant
from refsd.golden.operation import REQUIRED
from refsd.golden.recipe import Recipe
from refsd.golden.rounding import Bound, floor, gamma, unit
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import Numerics

OP = "stage/"


class NoDifference(Exception):
    """The bug makes no difference to these inputs: raised by a part of the rule."""


Params = Mapping[str, Any]
Tensors = Mapping[str, np.ndarray]


class StageInputs(NamedTuple):
    """A stage's inputs.

    tensors: name -> values; floating-point ones in `dtype`
    params:  with defaults filled in
    dtype:   in which the stage computes
    """

    tensors: Tensors
    params: Params
    dtype: np.dtype


class Output(NamedTuple):
    """An output of a stage, and its error bound.

    axes:      name of each axis, singular: ("item", "token"); reports name a place by them
    size:      inputs, truth -> size of the terms behind each element, to which the bound is proportional; None:
               engines must give exactly these numbers
    roundings: longest chain of roundings behind an element
    spelled:   of ids: id -> the characters that it stands for, or None if that is not known
    text:      of ids: the case's parameters, ids -> the text that they spell, or None if that is not known
    """

    axes: tuple[str, ...]
    size: Callable[[StageInputs, np.ndarray], np.ndarray] | None = None
    roundings: int = 0
    spelled: Callable[[int], str | None] | None = None
    text: "Callable[[Params, list[int]], str | None] | None" = None

    @property
    def shape(self) -> str:
        return f"[{', '.join(self.axes)}]" + (", exact" if self.size is None else "")

    def bound(self, inputs: StageInputs, truth: np.ndarray, numerics: Numerics) -> Bound:
        """Return the bound: gamma(roundings) size + u_storage |truth| + smallest normal number.

        inputs, truth: float64
        """
        if self.size is None:
            return Bound(np.zeros(truth.shape), np.zeros(truth.shape))
        # A known bug may answer with NaN or infinity, which have no bound.
        with np.errstate(invalid="ignore"):
            limit = gamma(self.roundings, unit(numerics.compute_dtype)) * self.size(inputs, truth)
            limit = limit + unit(numerics.storage_dtype) * np.abs(truth) + floor(numerics.storage_dtype)
        limit = np.broadcast_to(limit, truth.shape)
        return Bound(limit, limit / np.sqrt(3))


def magnitude(inputs: StageInputs, truth: np.ndarray) -> np.ndarray:
    """Return |truth|: the size for outputs that are products, or sums without cancellation."""
    return np.abs(truth)


class Change(NamedTuple):
    """A bug, as a change to the reference. Fields that are None or empty change nothing.

    parts:   name -> replacement of a part of the rule
    params:  the case's params -> wrong params; None if that makes no difference
    tensors: the inputs -> wrong inputs; None if that makes no difference
    outputs: the right outputs -> wrong outputs; None if that makes no difference
    """

    parts: Mapping[str, Any] = {}
    params: Callable[[Params], Params | None] | None = None
    tensors: Callable[[Tensors], Tensors | None] | None = None
    outputs: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray] | None] | None = None


def part(name: str, **parts: Any) -> Mutant[Change]:
    """Return a known bug that replaces parts of the rule."""
    return Mutant(name, Change(parts))


def param(name: str, **values: Any) -> Mutant[Change]:
    """Return a known bug that uses other parameters; a callable value maps the case's own to the wrong one."""

    def changed(params: Params) -> Params | None:
        if not values.keys() <= params.keys():
            return None
        own = {key: value(params[key]) if callable(value) else value for key, value in values.items()}
        return {**params, **own}

    return Mutant(name, Change(params=changed))


class Stage(NamedTuple):
    """A stage.

    name:    a case asks for it as stage/NAME
    what:    one sentence
    inputs:  name -> shape; a name that ends in "?" is optional; "*": any further names
    params:  parameter -> default; REQUIRED if there is none
    outputs: in the order of computation; a case has those that its parameters ask for
    rule:    NamedTuple of the functions that make up the rule; a known bug replaces some
    run:     (rule, inputs) -> outputs
    known:   known bugs, in addition to those of `misplaced`
    cases:   put to engines
    choices: parameter -> the values that it may have, if not any
    lacks:   params -> why the reference cannot answer; None if it can
    blames:  (inputs, an engine's answer, truth, largest bound of each output) -> causes that this stage alone can
             see, of an answer that no known bug explains
    """

    name: str
    what: str
    inputs: Mapping[str, str]
    params: Mapping[str, Any]
    outputs: Mapping[str, Output]
    rule: Any
    run: Callable[[Any, StageInputs], dict[str, np.ndarray]]
    known: tuple[Mutant[Change], ...]
    cases: tuple[Case, ...]
    choices: Mapping[str, Collection[Any]] = {}
    lacks: Callable[[Params], str | None] = lambda params: None
    blames: Callable[[StageInputs, Tensors, Tensors, Mapping[str, float]], list[str]] = lambda *_: []

    def complete(self, inputs: Mapping[str, Any], params: Params) -> dict[str, Any]:
        """Return the parameters with defaults. Raises BadInput for missing or unknown inputs and parameters."""
        required = {name for name in self.inputs if not name.endswith("?") and name != "*"}
        unknown = inputs.keys() - {name.rstrip("?") for name in self.inputs} if "*" not in self.inputs else ()
        if required - inputs.keys() or unknown:
            expected = ", ".join(self.inputs) or "none"
            raise BadInput(f"{OP}{self.name}: inputs {sorted(inputs)}, expected {expected}")
        if params.keys() - self.params.keys():
            raise BadInput(f"{OP}{self.name}: params {sorted(params)}, expected some of {', '.join(self.params)}")
        full = {**self.params, **params}
        missing = [name for name, value in full.items() if value is REQUIRED]
        if missing:
            raise BadInput(f"{OP}{self.name}: missing params {', '.join(missing)}")
        return full

    def answer(self, inputs: StageInputs, change: Change | None = None) -> dict[str, np.ndarray] | None:
        """Return the outputs, with or without a bug; None if the bug makes no difference to these inputs."""
        right, change = change is None, change or Change()
        params = change.params(inputs.params) if change.params else inputs.params
        tensors = change.tensors(inputs.tensors) if change.tensors else inputs.tensors
        if params is None or tensors is None:
            return None
        try:
            self._check(params)
            outputs = self.run(self.rule._replace(**change.parts), inputs._replace(params=params, tensors=tensors))
        except (NoDifference, BadInput):
            if right:
                raise
            return None
        outputs = {name: outputs[name] for name in self.outputs if name in outputs}
        return change.outputs(outputs) if change.outputs else outputs

    def _check(self, params: Params) -> None:
        for name, values in self.choices.items():
            if params[name] not in values:
                expected = f"expected one of {', '.join(map(str, values))}"
                raise BadInput(f"{OP}{self.name}: {name} {params[name]!r}: {expected}")

    @property
    def mutants(self) -> tuple[Mutant[Change], ...]:
        return *self.known, *misplaced(self.outputs)


def case(stage: str, label: str, inputs: Mapping[str, Recipe] | None = None, **params: Any) -> Case:
    return Case(f"{OP}{stage}/{label}", f"{OP}{stage}", dict(inputs or {}), params)


# --- right numbers in the wrong place: bugs of any stage with such an axis ---------------------------------------


def _first_for_all(y: np.ndarray, axis: int) -> np.ndarray:
    return np.broadcast_to(np.take(y, [0], axis), y.shape)


def _one_late(y: np.ndarray, axis: int) -> np.ndarray:
    return np.take(y, np.maximum(np.arange(y.shape[axis]) - 1, 0), axis)


def _one_early(y: np.ndarray, axis: int) -> np.ndarray:
    return np.take(y, np.minimum(np.arange(y.shape[axis]) + 1, y.shape[axis] - 1), axis)


def _reversed(y: np.ndarray, axis: int) -> np.ndarray:
    return np.flip(y, axis)


def _halves_swapped(y: np.ndarray, axis: int) -> np.ndarray:
    return np.roll(y, y.shape[axis] // 2, axis)


# axis -> name of the bug -> the bug
_ALONG = {
    "item": {"every item of the batch is the first": _first_for_all},
    "step": {"every step is the one before": _one_late, "every step is the next": _one_early},
    "token": {"every token is the one before": _one_late, "every token is the next": _one_early},
    "channel": {"channels in reverse": _reversed, "halves of the channels swapped": _halves_swapped},
    "row": {"rows in reverse": _reversed},
    "column": {"columns in reverse": _reversed},
}


def _rounded(dtype: str) -> Callable[[np.ndarray], np.ndarray]:
    import ml_dtypes

    kind = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}[dtype]

    def change(y: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):
            return y.astype(kind).astype(y.dtype)

    return change


def misplaced(outputs: Mapping[str, Output]) -> tuple[Mutant[Change], ...]:
    """Return generic bugs: right numbers in the wrong place along each axis, and outputs of lower precision."""
    mutants = []
    for axis, bugs in _ALONG.items():
        if any(axis in output.axes for output in outputs.values()):
            mutants += [Mutant(name, Change(outputs=_along(axis, move, outputs))) for name, move in bugs.items()]
    rounded = [name for name, output in outputs.items() if output.size is not None]
    if rounded:
        mutants += [
            Mutant(f"{dtype} throughout", Change(outputs=_each(rounded, _rounded(dtype))))
            for dtype in ("float16", "bfloat16")
        ]
    return tuple(mutants)


def _along(axis: str, move: Callable[[np.ndarray, int], np.ndarray], outputs: Mapping[str, Output]):
    def change(found: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        there = {name: outputs[name].axes.index(axis) for name in found if axis in outputs[name].axes}
        return {name: move(y, there[name]) if name in there else y for name, y in found.items()}

    return change


def _each(names: list[str], move: Callable[[np.ndarray], np.ndarray]):
    return lambda found: {name: move(y) if name in names else y for name, y in found.items()}
