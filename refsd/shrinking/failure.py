"""In what way an engine fails a case, and whether it fails another in the same way."""

import re
import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from refsd.engines.reference import Reference
from refsd.golden import conform, verdict
from refsd.golden.case import Case
from refsd.golden.conform import Answered, Runner
from refsd.golden.engine import Engine, ModelFiles
from refsd.golden.given_case import GivenCase
from refsd.golden.judge import Answer
from refsd.golden.report import Result
from refsd.judges.cut import operations_at
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT64

# Of an answer that misses its bound by more than this, the smaller case's must miss it by as much.
_CLEAR = 4.0
# What the reference raises for a case that does not fit together.
NO_CASE = (BadInput, ValueError, TypeError, LookupError, ZeroDivisionError, OverflowError, MemoryError)


class Cut(NamedTuple):
    """
    tap:        the first that is wrong; actual: the engine's
    operations: between it and the engine's tap before it, the last first, on the engine's own inputs
    """

    tap: str
    actual: np.ndarray
    operations: Sequence[GivenCase]


class Failure(NamedTuple):
    """
    status: of verdict.py: fail, deviates or error
    kind:   "numbers", "not finite", "shape", "missing"; of an error its text without numbers
    causes: known bugs that explain it, the likeliest first, or the deviations that do; without numbers and place,
            which are others in each case
    place:  the operation, the first wrong tap, or the first wrong output
    margin: how far the verdict is missed
    """

    status: str
    kind: str
    causes: tuple[str, ...]
    place: str
    margin: float

    @property
    def layer(self) -> str:
        """The place without the numbers of its blocks: of a model of fewer blocks another one fails."""
        return re.sub(r"\.\d+(?=\.)", ".#", self.place)

    def is_that_of(self, other: "Failure") -> bool:
        """Whether another answer fails so: with the same status, kind, layer and likeliest cause."""
        same = (self.status, self.kind, self.layer) == (other.status, other.kind, other.layer)
        explained = not self.causes or self.causes[0] in other.causes[:1]
        return same and explained and other.margin >= min(self.margin, _CLEAR)


def failure_of(result: Result) -> Failure | None:
    """How a result fails; None where it conforms, or where nothing can be judged."""
    if result.status not in (verdict.FAIL, verdict.DEVIATES, verdict.ERROR):
        return None
    causes = result.deviations or tuple(map(_in_any_case, result.causes))
    place = result.place if result.place not in ("", "y") else result.op
    # With another number of steps the wrong one is another.
    place = re.sub(r"\[\d+\]", "", place) if result.op == "trajectory" else place
    return Failure(result.status, _kind(result), causes, place, result.margin)


# Where in the case a cause holds: ", in the last 4 of 20 along axis 1, after the last whole block of 8 alone".
_PLACE = re.compile(r", (?:in|at|from) .*")
_NUMBER = re.compile(r"(?<![\w.])-?\d[\d.]*(?:e[-+]?\d+)?")


def _in_any_case(cause: str) -> str:
    """A cause without its place and numbers; another case has others."""
    return _NUMBER.sub("#", _PLACE.sub("", cause))


def _kind(result: Result) -> str:
    if result.status == verdict.ERROR or not result.outputs:
        return re.sub(r"0x[0-9a-f]+|[\d.,]+", "#", result.reason)[:120]
    wrong = next((m for m in result.outputs if not verdict.judge_output(m).passed), result.outputs[0])
    if wrong.found is None:
        return "missing"
    if wrong.found != wrong.shape:
        return "shape"
    return "not finite" if wrong.not_finite else "numbers"


def runner_of(model_files: ModelFiles | None = None) -> Runner:
    """Judge cases against answers that are computed as they are asked for; nothing is waived.

    model_files: gives the file of a model's recipe weights; without it, nothing of models can be judged
    """
    reference = Reference(FLOAT64, model_files=model_files)
    last: list[tuple[Case, Answer]] = []

    def truth(case: Case) -> Answer:
        if not last or last[0][0] is not case:
            last[:] = [(case, reference.run(case, case.realize()))]
        return last[0][1]

    return Runner(reference.judges, truth)


def ask(runner: Runner, engine: Engine, case: Case) -> Result | None:
    """The verdict on one case; None where it does not fit together, has no answer, or is not for the engine."""
    try:
        if engine.refuses(case) is not None:
            return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NumPy's, of known bugs that make no sense in tiny sizes
            if any(np.isnan(y).any() for y in runner.truths(case).values() if y.dtype.kind == "f"):
                return None
            (result,) = conform.run(runner, [engine], [case])
    except NO_CASE:
        return None
    return None if result.status == verdict.REFUSED else result


Question = Callable[[Case], Result | None]
# A failing case -> what its first wrong tap was made of, if an engine shows its taps.
Cutter = Callable[[Case], Cut | None]


def cut(runner: Runner, engine: Engine, case: Case) -> Cut | None:
    """The operations at the first wrong tap of an engine's answer to a model's case; None where no tap is wrong."""
    kept: list[Answered] = []
    ask(runner._replace(measured=kept.append, explains=False), engine, case)
    if not kept or not kept[0].examined.wrong:
        return None
    (answered,) = kept
    tap = answered.examined.wrong[0]
    actual = {**answered.taps, **answered.actual}[tap]
    return Cut(tap, np.asarray(actual, np.float64), operations_at(runner.judges.of(case), answered))
