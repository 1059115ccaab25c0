"""In what way an engine fails a case, and whether it fails another in the same way."""

import re
import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from refsd.engines.reference import Reference
from refsd.golden import conform, verdict
from refsd.golden.case import Case
from refsd.golden.conform import Result, Runner
from refsd.golden.engine import Engine
from refsd.golden.judge import Judges
from refsd.judges import judges
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT64

# Of an answer that misses its bound by more than this, the smaller case's must miss it by as much.
_CLEAR = 4.0
# What the reference raises for a case that does not fit together.
NO_CASE = (BadInput, ValueError, IndexError, ZeroDivisionError, OverflowError, MemoryError)


class Failure(NamedTuple):
    """
    status: of verdict.py: fail, deviates or error
    kind:   "numbers", "not finite", "shape", "missing"; of an error its text without numbers
    causes: known bugs that explain it, the likeliest first; or the deviations that do
    place:  the operation, or the first wrong tap
    margin: how far the verdict is missed
    """

    status: str
    kind: str
    causes: tuple[str, ...]
    place: str
    margin: float

    def is_that_of(self, other: "Failure") -> bool:
        """Whether another answer fails so: with the same status, kind and place, and the likeliest cause."""
        same = (self.status, self.kind, self.place) == (other.status, other.kind, other.place)
        explained = not self.causes or self.causes[0] in other.causes
        return same and explained and other.margin >= min(self.margin, _CLEAR)


def failure_of(result: Result) -> Failure | None:
    """How a result fails; None where it conforms, or where nothing can be judged."""
    if result.status not in (verdict.FAIL, verdict.DEVIATES, verdict.ERROR):
        return None
    causes = result.deviations or result.causes
    place = result.place if result.place not in ("", "y") else result.op
    return Failure(result.status, _kind(result), tuple(causes), place, result.margin)


def _kind(result: Result) -> str:
    if result.status == verdict.ERROR or not result.outputs:
        return re.sub(r"0x[0-9a-f]+|[\d.,]+", "#", result.reason)[:120]
    wrong = next((m for m in result.outputs if not verdict.judge_output(m).passed), result.outputs[0])
    if wrong.found is None:
        return "missing"
    if wrong.found != wrong.shape:
        return "shape"
    return "not finite" if wrong.not_finite else "numbers"


def runner_of(kinds: Judges | None = None) -> Runner:
    """Judge cases against answers that are computed as they are asked for; nothing is waived."""
    truth = Reference(FLOAT64)
    if kinds is not None:
        truth.judges = kinds
    return Runner(kinds or judges(), lambda case: truth.run(case, case.realize()))


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
