"""An engine with one bug: the reference, some part of which computes something else.

A bug is written here a second time, without the judge's own known bugs: as the operation, the stage, the sampler or
the weight that an engine with it would have. What it should look like to the judge stands beside it.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np

from refsd.components import forward, load
from refsd.engines.reference import Reference
from refsd.golden.case import Case
from refsd.golden.engine import ModelFiles
from refsd.module import Module, Taps
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.machine import one_answer
from refsd.numerics.profiles import Numerics
from refsd.numerics.tensor import StoredTensor
from refsd.stages import STAGES
from refsd.stages.stage import StageInputs
from refsd.weights.checkpoint import open_checkpoint

Inputs = Mapping[str, StoredTensor]
Outputs = dict[str, np.ndarray]
Weights = Mapping[str, StoredTensor]


class Bug(NamedTuple):
    """
    arithmetic: the operations, some of them wrong; of operations and models
    answer:     (case, inputs, the right answer) -> the wrong one
    parts:      parts of a stage's rule that are others
    asked:      what a stage is asked -> what the engine takes it for
    inputs:     of a model: its inputs -> what the engine takes them for
    weights:    of a model: its weights -> what the engine takes them for
    params:     of a model: the case's parameters -> what the engine takes them for
    patched:    while a model runs: one of its functions is another
    """

    arithmetic: type[Arithmetic] = Arithmetic
    answer: Callable[[Case, Inputs, Outputs], Outputs] | None = None
    parts: Mapping[str, Any] = {}
    asked: Callable[[StageInputs], StageInputs] | None = None
    inputs: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]] | None = None
    weights: Callable[[Weights], Weights] | None = None
    params: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    patched: Callable[[], AbstractContextManager] = nullcontext


class Injection(NamedTuple):
    """
    cases: globs of the cases that an engine with the bug is asked
    place: a pattern that the report's place, reason or operation must match
    cause: a pattern that the cause named first must match
    """

    cases: tuple[str, ...]
    bug: Bug
    place: str
    cause: str

    def placed(self, reported: str) -> bool:
        return re.search(self.place, reported) is not None

    def named(self, causes: Sequence[str]) -> bool:
        return bool(causes) and re.search(self.cause, causes[0]) is not None


class Injected(Reference):
    """The reference under some numerics, with a bug; it shows its taps."""

    def __init__(self, bug: Bug, numerics: Numerics, model_files: ModelFiles | None):
        super().__init__(numerics, model_files=model_files)
        self.name = "injected"
        self._bug, self._files = bug, model_files
        self.arithmetic = bug.arithmetic(numerics)

    def run(self, case: Case, inputs: Inputs) -> Outputs:
        with np.errstate(all="ignore"):
            if case.op.startswith("model/"):
                return self.run_tapped(case, inputs)[0]
            if case.op in STAGES and (self._bug.parts or self._bug.asked):
                y = self._stage(case, inputs)
            else:
                y = super().run(case, inputs)
            return self._bug.answer(case, inputs, y) if self._bug.answer else y

    def run_tapped(self, case: Case, inputs: Inputs) -> tuple[Outputs, Outputs]:
        if not case.op.startswith("model/"):
            return self.run(case, inputs), {}
        assert case.model is not None and self._files is not None
        bug, name, taps = self._bug, case.op.removeprefix("model/"), Taps(ops=True)
        values = {key: tensor.values() for key, tensor in inputs.items()}
        with np.errstate(all="ignore"), one_answer(self.arithmetic.numerics), bug.patched():
            checkpoint = open_checkpoint(self._files(case.model, "ldm"))
            m, params = load(checkpoint, name, self.arithmetic)
            params = {**params, **case.params}
            m = Module(bug.weights(m.weights) if bug.weights else m.weights, self.arithmetic, taps=taps)
            values = bug.inputs(values) if bug.inputs else values
            y = forward(name, m, values, bug.params(params) if bug.params else params, case.name)
        return (bug.answer(case, inputs, y) if bug.answer else y), taps

    def _stage(self, case: Case, inputs: Inputs) -> Outputs:
        stage, numerics = STAGES[case.op], self.arithmetic.numerics
        dtype = numerics.compute_dtype
        tensors = {name: tensor.values() for name, tensor in inputs.items()}
        tensors = {name: y if y.dtype.kind in "iub" else y.astype(dtype) for name, y in tensors.items()}
        asked = StageInputs(tensors, stage.complete(inputs, case.params), dtype)
        asked = self._bug.asked(asked) if self._bug.asked else asked
        y = stage.run(stage.rule._replace(**self._bug.parts), asked)
        return {name: np.asarray(y[name]).astype(numerics.storage_dtype) for name in stage.outputs if name in y}


def wrong_operation(**methods: Callable[..., np.ndarray]) -> Bug:
    """A bug in methods of Arithmetic; each takes the arithmetic, the right method, and the method's arguments."""

    def method(name: str, wrong: Callable[..., np.ndarray]):
        def called(self, *arguments, **named):
            right = getattr(Arithmetic, name).__get__(self)
            return np.asarray(wrong(self, right, *arguments, **named)).astype(self.numerics.storage_dtype)

        return called

    return Bug(type("Wrong", (Arithmetic,), {name: method(name, wrong) for name, wrong in methods.items()}))


def wrong_parts(cases: str, place: str, cause: str, **parts) -> Injection:
    return Injection((f"stage/{cases}",), Bug(parts=parts), place, cause)


def wrong_answer(cases: str, place: str, cause: str, change) -> Injection:
    """change: case, values of the inputs, outputs -> wrong outputs, or None where there is no difference"""

    def answer(case, inputs, y):
        wrong = change(case, {name: tensor.values().astype(np.float64) for name, tensor in inputs.items()}, y)
        return {**y, **{k: np.asarray(v).astype(y[k].dtype) for k, v in (wrong or {}).items()}}

    return Injection((f"stage/{cases}",), Bug(answer=answer), place, cause)


def other_question(cases: str, place: str, cause: str, **changes) -> Injection:
    """The stage is asked another parameter: a function of the right one."""

    def asked(right):
        own = {k: change(right.params[k]) for k, change in changes.items() if k in right.params}
        return right._replace(params={**right.params, **own})

    return Injection((f"stage/{cases}",), Bug(asked=asked), place, cause)


def wrong_method(op: str, place: str, cause: str, *cases: str, **methods) -> Injection:
    """A wrong method of Arithmetic; asked are all cases of the operation, or those that match `cases`."""
    return Injection(cases or (f"{op}/*",), wrong_operation(**methods), place, cause)


def other_result(op: str, cause: str, change) -> Injection:
    """A bug in what the operation writes."""
    return Injection(
        (f"{op}/*",), Bug(answer=lambda case, inputs, y: {"y": change(case, inputs, y["y"])}), op, cause
    )
