"""Operations as a kind of case: answered by their pages, judged within a derived bound."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from refsd.golden import operations
from refsd.golden.case import Case
from refsd.golden.description import describe
from refsd.golden.explanation import Nearest, Scene
from refsd.golden.judge import Answer, Inputs, Judge, Mutant, Standard
from refsd.golden.metrics import Metrics, measure, not_asked_for
from refsd.golden.operations import OPERATIONS
from refsd.golden.rounding import Bound, unit
from refsd.golden.verdict import judge
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.machine import one_answer
from refsd.numerics.profiles import Numerics


class OperationJudge(Judge):
    def takes(self, op: str) -> bool:
        return op in OPERATIONS

    def what(self, case: Case) -> str:
        return OPERATIONS[case.op].what

    def complete(self, case: Case, inputs: Inputs) -> dict[str, Any]:
        return OPERATIONS[case.op].complete(inputs, case.params)

    def answer(self, case: Case, inputs: Inputs, arithmetic: Arithmetic) -> dict[str, np.ndarray]:
        with one_answer(arithmetic.numerics):
            return operations.run(case.op, arithmetic, inputs, case.params)

    def measure(self, standard: Standard, found: Answer) -> list[Metrics]:
        """A deviation that replaces a parameter moves the bound, too."""
        case, truth = standard.case, standard.truth["y"]
        op, params = OPERATIONS[case.op], dict(case.params)
        for deviation in standard.deviations:
            if deviation.op == case.op:
                params |= {name: value for name, value in deviation.sets.items() if name in op.params}
        limits = op.bound_of(standard.numerics, standard.inputs, params, truth)
        y = measure("y", found.get("y"), truth, standard.honest["y"], limits, op.channel)
        return [y, *not_asked_for(found, standard.truth)]

    def mutants(self, case: Case) -> Sequence[Mutant]:
        return OPERATIONS[case.op].mutants

    def wrong_answer(self, case: Case, inputs: Inputs, mutant: Mutant) -> Answer | None:
        op = OPERATIONS[case.op]
        with np.errstate(all="ignore"):
            y = mutant.change(op, inputs, op.complete(inputs, case.params))
        return None if y is None else {"y": y}

    def diagnose(self, standard: Standard, found: Answer) -> list[str]:
        """The names of the mutants that explain the answer by explanation.py's rule.

        A mutant answers in float32: the honest run's error is added, in place of a mutant under the engine's
        numerics. The verdict must pass with the mutant's answer as the truth.
        """
        case, inputs, truth, honest, numerics, _ = standard
        y = found.get("y")
        if y is None or y.shape != truth["y"].shape:
            return []
        op = OPERATIONS[case.op]
        limits = op.bound_of(numerics, inputs, case.params, truth["y"])
        error = honest["y"].astype(np.float64) - truth["y"]
        scene = _scene(standard, found, limits)

        suspects = {}
        for mutant in op.mutants:
            answer = self.wrong_answer(case, inputs, mutant)
            if answer is None or answer["y"].shape != y.shape or np.array_equal(answer["y"], honest["y"]):
                continue
            wrong = answer["y"].astype(np.float64)
            with np.errstate(invalid="ignore", over="ignore"):
                near = wrong + error
            if not scene.explained_by({"y": near}):
                continue
            room = _room(limits, wrong, numerics)
            if judge([measure("y", y, wrong, near, room, op.channel)]).passed:
                suspects[mutant.name] = {"y": near}
        return scene.nearest(suspects)

    def describe(self, standard: Standard, found: Answer) -> list[str]:
        case, truth, honest = standard.case, standard.truth, standard.honest
        y = found.get("y")
        if y is None or y.shape != truth["y"].shape:
            return []
        return describe(y, truth["y"], honest["y"], OPERATIONS[case.op].channel)

    def nearest(self, standard: Standard, found: Answer) -> Nearest | None:
        case, truth, honest = standard.case, standard.truth, standard.honest
        y = found.get("y")
        if y is None or y.shape != truth["y"].shape:
            return None
        op = OPERATIONS[case.op]
        limits = op.bound_of(standard.numerics, standard.inputs, case.params, truth["y"])
        error = honest["y"].astype(np.float64) - truth["y"]
        suspects = {}
        for mutant in op.mutants:
            answer = self.wrong_answer(case, standard.inputs, mutant)
            if answer is not None and answer["y"].shape == y.shape and np.isfinite(answer["y"]).all():
                suspects[mutant.name] = {"y": answer["y"].astype(np.float64) + error}
        return _scene(standard, found, limits).nearest_cause(suspects)


def _scene(standard: Standard, found: Answer, limits: Bound) -> Scene:
    """The answers in units of the bound, and of the rounding where that is zero."""
    scale = limits.limit + _ulps(standard.truth["y"], unit(standard.numerics.compute_dtype))
    return Scene(found, standard.truth, standard.honest, {"y": np.where(scale > 0, scale, 1.0)})


def _room(limits: Bound, wrong: np.ndarray, numerics: Numerics) -> Bound:
    """The right answer's bound, and what rounding the wrong one adds: it may be the larger."""
    more = 8 * _ulps(wrong, max(unit(numerics.compute_dtype), unit(numerics.storage_dtype)))
    return Bound(limits.limit + more, limits.spread + more / 8)


def _ulps(y: np.ndarray, u: float) -> np.ndarray:
    """u times the size of each number, or times the RMS of all if that is more."""
    size = np.abs(y)
    return u * np.maximum(size, np.sqrt(np.mean(np.where(np.isfinite(size), size, 0.0) ** 2)))
