"""Judge cases of stages: a stage's page gives the truth, and each output must be exact or within its bound."""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from refsd.causes.stage.causes import known_causes, searched_causes
from refsd.causes.stage.draws import other_draws
from refsd.causes.stage.elsewhere import elsewhere
from refsd.causes.stage.scene import Scene
from refsd.golden import explanation
from refsd.golden.case import Case
from refsd.golden.explanation import Explanation
from refsd.golden.judge import Answer, Inputs, Judge, Mutant, Standard
from refsd.golden.metrics import Metrics, measure, not_asked_for
from refsd.golden.rounding import Bound, unit
from refsd.golden.verdict import judge
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.machine import one_answer
from refsd.numerics.profiles import FLOAT32, FLOAT64, Numerics
from refsd.stages import STAGES
from refsd.stages.stage import Change, Output, StageInputs


class StageJudge(Judge):
    """Judges stages. An error's place is the first wrong item of the first wrong output in order of computation."""

    def takes(self, op: str) -> bool:
        return op in STAGES

    def what(self, case: Case) -> str:
        return STAGES[case.op].what

    def refuses(self, case: Case, numerics: Numerics) -> str | None:
        if numerics.storage not in ("float64", "float32"):
            return f"no stage is computed in {numerics.storage}"
        return STAGES[case.op].lacks(case.params)

    def complete(self, case: Case, inputs: Inputs) -> dict[str, Any]:
        return STAGES[case.op].complete(inputs, case.params)

    def answer(self, case: Case, inputs: Inputs, arithmetic: Arithmetic) -> dict[str, np.ndarray]:
        with one_answer(arithmetic.numerics):
            found = self._answer(case, inputs, arithmetic.numerics)
        assert found is not None
        return found

    def measure(self, standard: Standard, actual: Answer) -> list[Metrics]:
        """Measure the outputs that the truth has: a case may ask for only some of the stage's."""
        return self._measured(standard, actual, False)

    def _measured(self, standard: Standard, actual: Answer, wrong: bool) -> list[Metrics]:
        """wrong: True if the truth is a mutant's, whose rounding errors may be larger"""
        case, stage = standard.case, STAGES[standard.case.op]
        stage_inputs = self._stage_inputs(case, standard.inputs, FLOAT64)
        metrics = []
        for name, output in stage.outputs.items():
            if name in standard.truth:
                truth = standard.truth[name]
                limits = output.bound(stage_inputs, truth, standard.numerics)
                if wrong and output.size is not None:
                    finite = np.where(np.isfinite(truth), truth, 0.0)
                    size = np.maximum(np.abs(finite), np.linalg.norm(finite) / np.sqrt(max(truth.size, 1)))
                    more = 8 * unit(standard.numerics.compute_dtype) * size
                    limits = Bound(limits.limit + more, limits.spread + more / 8)
                channel = output.axes.index("channel") if "channel" in output.axes else -1
                m = measure(name, actual.get(name), truth, standard.honest[name], limits, channel)
                place = _place(output, actual.get(name), truth, limits)
                metrics.append(msgspec.structs.replace(m, place=place))
        return metrics + not_asked_for(actual, standard.truth)

    def limits(self, standard: Standard) -> Answer:
        outputs = STAGES[standard.case.op].outputs
        stage_inputs = self._stage_inputs(standard.case, standard.inputs, FLOAT64)
        return {
            name: np.broadcast_to(outputs[name].bound(stage_inputs, y, standard.numerics).limit, y.shape)
            for name, y in standard.truth.items()
        }

    def mutants(self, case: Case) -> Sequence[Mutant[Change]]:
        return STAGES[case.op].mutants

    def wrong_answer(self, case: Case, inputs: Inputs, mutant: Mutant[Change]) -> Answer | None:
        return self._answer(case, inputs, FLOAT32, mutant.change)

    def explain(self, standard: Standard, actual: Answer, tap: str = "") -> Explanation:
        return Explanation(self._causes(standard, actual))

    def _causes(self, standard: Standard, actual: Answer) -> list[str]:
        """Return the known bugs with which the reference reproduces the answer, by golden/explanation.py's rule.

        If the answer's shape differs from the truth's, only the match with the bug's own answer counts.
        """
        case, inputs, truth, honest, numerics, _ = standard
        if actual.keys() != truth.keys():
            return []
        near_by, suspects = {}, {}
        for mutant in self.mutants(case):
            right, near = (self._answer(case, inputs, of, mutant.change) for of in (FLOAT64, numerics))
            if right is None or near is None or not truth.keys() <= right.keys():
                continue
            right, near = ({name: y[name] for name in truth} for y in (right, near))
            near_by[mutant.name] = near
            if judge(self._measured(standard._replace(truth=right, honest=near), actual, True)).passed:
                suspects[mutant.name] = near
        stage_inputs, stage = self._stage_inputs(case, inputs, FLOAT64), STAGES[case.op]
        bounds = {name: stage.outputs[name].bound(stage_inputs, y, numerics) for name, y in truth.items()}
        named = list(suspects)
        same_shapes = all(actual[name].shape == y.shape for name, y in truth.items())
        if same_shapes:
            scale = {name: np.where(bound.limit > 0, bound.limit, 1.0) for name, bound in bounds.items()}
            answers = explanation.Scene(actual, truth, honest, scale)
            named = answers.nearest({name: near for name, near in suspects.items() if answers.explained_by(near)})
        scene = Scene(stage, stage_inputs, actual, truth, honest, bounds)
        named = named or known_causes(scene, near_by) or elsewhere(scene)
        if not named and same_shapes:
            named = other_draws(scene)
        return named or searched_causes(scene, near_by)

    def _stage_inputs(self, case: Case, inputs: Inputs, numerics: Numerics) -> StageInputs:
        dtype = numerics.compute_dtype
        tensors = {name: tensor.values() for name, tensor in inputs.items()}
        tensors = {name: y if y.dtype.kind in "iub" else y.astype(dtype) for name, y in tensors.items()}
        return StageInputs(tensors, self.complete(case, inputs), dtype)

    def _answer(
        self, case: Case, inputs: Inputs, numerics: Numerics, change: Change | None = None
    ) -> dict[str, np.ndarray] | None:
        with np.errstate(all="ignore"):
            found = STAGES[case.op].answer(self._stage_inputs(case, inputs, numerics), change)
        return found and {name: np.asarray(y).astype(numerics.storage_dtype) for name, y in found.items()}


def _place(output: Output, actual: np.ndarray | None, truth: np.ndarray, limits: Bound) -> str:
    """Return the first wrong item in words, as "token 7 is 320, truth 345"; "" if there is none."""
    if actual is None or actual.ndim != truth.ndim:
        return ""
    common = tuple(slice(0, min(sizes)) for sizes in zip(actual.shape, truth.shape, strict=True))
    with np.errstate(invalid="ignore"):
        error = np.abs(actual[common].astype(np.float64) - truth[common])
    wrong = ~(error <= limits.limit[common]) & ~(np.isnan(actual[common]) & np.isnan(truth[common]))
    if not wrong.any():
        return ""
    at = tuple(int(i) for i in np.unravel_index(int(np.argmax(wrong)), wrong.shape))
    long = [i for i, n in enumerate(truth.shape) if n > 1] or [truth.ndim - 1]
    words = ", ".join(f"{output.axes[i]} {at[i]}" for i in long)
    return f"{words} is {float(actual[at]):.10g}, truth {float(truth[at]):.10g}"
