"""Compare two engines on cases: judge each against the reference, then both against each other, tap by tap."""

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import msgspec
import numpy as np

from refsd.golden import verdict
from refsd.golden.case import Case
from refsd.golden.conform import Answered, Runner, run
from refsd.golden.engine import Engine
from refsd.golden.judge import Answer
from refsd.golden.metrics import Metrics
from refsd.golden.report import Result
from refsd.golden.verdict import NO_WITNESS, allowed_l2, judge_output

Outcome = Literal["both conform", "one is wrong", "both are wrong", "not compared"]


class Parting(msgspec.Struct, frozen=True):
    """The first tap or output at which an engine makes an error of its own.

    at:       name of the tap or output
    distance: |A - B| / |truth| of it; None if an engine lacks it or has it in another shape
    own:      engine -> relative L2 error against the reference, computed from the engine's own earlier taps
    allowed:  engine -> the error that its declared numerics allow
    before:   number of earlier taps that are right in both engines
    """

    at: str
    distance: float | None
    own: dict[str, float]
    allowed: dict[str, float]
    before: int


class Compared(msgspec.Struct, frozen=True):
    """The comparison of two engines on one case.

    right, wrong: names of the engines that conform, and of those that do not
    distance:     largest |A - B| / |truth| of the outputs; None if they cannot be compared
    explained:    largest distance that the declared numerics of both engines explain
    alike:        True if both are wrong, but agree with each other
    parting:      the first error; None if both conform, or if an engine gave no answer
    sides:        A's result and B's
    """

    case: str
    op: str
    outcome: Outcome
    sides: tuple[Result, Result]
    right: list[str] = []
    wrong: list[str] = []
    distance: float | None = None
    explained: float | None = None
    alike: bool = False
    parting: Parting | None = None


class Disagreement(msgspec.Struct, frozen=True):
    """The comparison of two engines on all cases. engines: name -> version, A's first"""

    refsd: str
    engines: dict[str, str]
    cases: list[Compared]

    @property
    def compared(self) -> list[Compared]:
        return [case for case in self.cases if case.outcome != "not compared"]

    @property
    def agree(self) -> bool:
        """True if both engines conform in every case that neither refuses."""
        return all(case.outcome == "both conform" for case in self.compared)


def compare_case(runner: Runner, a: Engine, b: Engine, case: Case) -> Compared:
    """Run one case on both engines and compare them. The engines' names must differ."""
    refusals = [engine.refuses(case) for engine in (a, b)]
    if any(refusals):
        sides = [
            Result(engine.name, case.name, case.op, verdict.REFUSED, reason=refusal or "")
            for engine, refusal in zip((a, b), refusals, strict=True)
        ]
        return Compared(case.name, case.op, "not compared", (sides[0], sides[1]))
    heard: dict[str, Answered] = {}

    def hear(answered: Answered) -> None:
        heard[answered.engine] = answered

    one, other = run(runner._replace(measured=hear), [a, b], [case])
    if any(result.status == verdict.REFUSED for result in (one, other)):
        return Compared(case.name, case.op, "not compared", (one, other))
    right = [result.engine for result in (one, other) if result.conforms]
    wrong = [result.engine for result in (one, other) if not result.conforms]
    outcomes: tuple[Outcome, ...] = ("both conform", "one is wrong", "both are wrong")
    compared = Compared(case.name, case.op, outcomes[len(wrong)], (one, other), right, wrong)
    if len(heard) < 2:
        return compared
    first, second = heard[a.name], heard[b.name]
    distance = _farthest(first.standard.truth, first.actual, second.actual)
    explained = sum(max((allowed_l2(m) for m in of.examined.outputs), default=0.0) for of in (first, second))
    return msgspec.structs.replace(
        compared,
        distance=distance,
        explained=explained,
        alike=len(wrong) == 2 and distance is not None and distance <= explained,
        parting=_parting(first, second) if wrong else None,
    )


def disagree(
    runner: Runner,
    a: Engine,
    b: Engine,
    cases: Iterable[Case],
    refsd: str,
    done: Callable[[Compared], None] = lambda compared: None,
) -> Disagreement:
    """Compare two engines on every case.

    refsd: version of the reference
    done:  called after each case
    """
    compared = []
    for case in cases:
        compared.append(compare_case(runner, a, b, case))
        done(compared[-1])
    return Disagreement(refsd, {a.name: a.version, b.name: b.version}, compared)


def _parting(a: Answered, b: Answered) -> Parting | None:
    measured = [_in_order(a), _in_order(b)]
    names = dict.fromkeys([*a.examined.trace.names, *measured[0], *measured[1]])
    before = 0
    for name in names:
        own = {of.engine: m[name] for of, m in zip((a, b), measured, strict=True) if name in m}
        judged = {engine: judge_output(m) for engine, m in own.items()}
        if all(one.passed or one.criterion == NO_WITNESS for one in judged.values()):
            before += len(own) == 2
            continue
        return Parting(
            name,
            _distance_at(name, a, b),
            {engine: m.relative_l2 for engine, m in own.items()},
            {engine: allowed_l2(m) for engine, m in own.items()},
            before,
        )
    return None


def _in_order(answered: Answered) -> dict[str, Metrics]:
    """Return the metrics of taps and outputs in the order of computation.

    An output that is also a tap was measured twice; the measurement from the engine's own earlier taps is kept.
    """
    found: dict[str, Metrics] = {}
    for m in [*answered.examined.trace.taps, *answered.examined.outputs]:
        found.setdefault(m.output, m)
    return found


def _distance_at(name: str, a: Answered, b: Answered) -> float | None:
    x, y = ({**of.taps, **of.actual}.get(name) for of in (a, b))
    return None if x is None or y is None else _distance(x, y, a.standard.truth.get(name, x))


def _farthest(truth: Answer, a: Answer, b: Answer) -> float | None:
    common = [name for name in truth if name in a and name in b]
    distances: Sequence[float | None] = [_distance(a[name], b[name], truth[name]) for name in common]
    known = [d for d in distances if d is not None]
    return max(known) if known and len(known) == len(truth) else None


def _distance(a: np.ndarray, b: np.ndarray, truth: np.ndarray) -> float | None:
    """Compute |a - b| / |truth| over finite elements; None if shapes differ, or a and b differ in the others."""
    if a.shape != b.shape or a.shape != truth.shape:
        return None
    a, b, truth = (np.asarray(y, np.float64) for y in (a, b, truth))
    usable = np.isfinite(a) & np.isfinite(b) & np.isfinite(truth)
    if not usable.all() and not np.array_equal(a[~usable], b[~usable], equal_nan=True):
        return None
    size = float(np.linalg.norm(truth[usable]))
    apart = float(np.linalg.norm(a[usable] - b[usable]))
    return 0.0 if apart == 0 else apart / size if size else None
