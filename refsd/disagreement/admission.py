"""Decide whether a candidate may replace a baseline: another build, flag, commit or device, both against float64.

Two rules stand side by side, and a candidate must keep both.

SGLang's rule for fast paths that claim to lose nothing: against float64 the RMS error is at most 1.5 times the
baseline's, its mean at most 0.25 of it, and no more elements are NaN or infinite where they should not be.
The derived bound: each case conforms under the numerics that the candidate declares, or did not under the baseline.
"""

import math
from collections.abc import Callable, Iterable, Sequence

import msgspec
import numpy as np

from refsd.golden import verdict
from refsd.golden.case import Case
from refsd.golden.conform import Answered, Runner, run
from refsd.golden.engine import Engine
from refsd.golden.metrics import Metrics
from refsd.golden.report import Result

RULE = "SGLang's admission rule: error <= 1.5x, bias <= 0.25 RMS, NaN and infinity as before"
_RATIO, _BIAS = 1.5, 0.25
# A relative error below one rounding of float32 counts as one: of two that are this small none is better.
_LEAST = 2.0**-24
# The mean of n independent errors exceeds this multiple of RMS / sqrt(n) by chance less than once in 10000 outputs.
_CHANCE = 4.0


class Admitted(msgspec.Struct, frozen=True):
    """A candidate's answer to one case beside the baseline's.

    ratio:   RMS error against float64 over the baseline's, of the output where it is largest
    bias:    mean error over RMS error, of the output where it is largest, both in units of the bound
    special: NaN and infinities that are wrong: the candidate's less the baseline's
    flips:   whole numbers of a stage, as tokens or pixels, that differ from the baseline's, whether the bound
             allows it or not; None where there are none, or where answers are not at hand
    bounds:  whether baseline and candidate keep their derived bounds
    faults:  why the candidate is not admitted; empty if it is
    """

    case: str
    op: str
    ratio: float = 1.0
    bias: float = 0.0
    special: int = 0
    flips: int | None = None
    bounds: tuple[bool, bool] = (True, True)
    faults: tuple[str, ...] = ()


class Admission(msgspec.Struct, frozen=True):
    """
    engines:  name -> version: the baseline, the candidate
    refused:  cases that the baseline does not answer
    admitted: True if no case has a fault, and some were compared
    worst:    the case of the largest ratio; ratio: the geometric mean of all
    """

    refsd: str
    rule: str
    engines: dict[str, str]
    cases: list[Admitted]
    refused: list[str]
    admitted: bool
    ratio: float
    worst: str

    @property
    def line(self) -> str:
        """The line to paste into a pull request."""
        names = " -> ".join(f"{name} {version}".strip() for name, version in self.engines.items())
        if not self.cases:
            return f"admission (refsd {self.refsd}): {names}: NOT ADMITTED: no case that the baseline answers"
        faulty = [case for case in self.cases if case.faults]
        outcome = f"NOT ADMITTED ({len(faulty)} of {len(self.cases)} cases)" if faulty else "ADMITTED"
        largest = next(case for case in self.cases if case.case == self.worst)
        before, after = (sum(case.bounds[which] for case in self.cases) for which in (0, 1))
        known = [case.flips for case in self.cases if case.flips is not None]
        parts = [
            f"{len(self.cases)} cases against float64",
            f"error {self.ratio:.3g}x (worst {largest.ratio:.3g}x, {self.worst})",
            f"bias up to {max(case.bias for case in self.cases):.2g} RMS",
            f"{sum(max(case.special, 0) for case in self.cases)} new NaN or infinite",
            *([f"{sum(known)} flips"] if known else []),
            *([f"{len(self.refused)} cases not compared"] if self.refused else []),
            f"derived bound kept in {after} (baseline {before})",
        ]
        about = f"admission (refsd {self.refsd}): {names}"
        return f"{about}: {outcome}: {', '.join(parts)}. Rule: {self.rule}; derived bound."


def compare(baseline: Result, candidate: Result, flips: int | None = None) -> Admitted:
    """Hold a candidate's result against the baseline's."""
    bounds = (_keeps(baseline), _keeps(candidate))
    if candidate.status == verdict.REFUSED:
        lost = (f"the baseline answers it, the candidate does not take it: {candidate.reason}",)
        return Admitted(candidate.case, candidate.op, bounds=bounds, faults=lost)
    faults = []
    if candidate.status == verdict.ERROR:
        faults.append(f"no answer: {candidate.reason}")
    elif bounds == (True, False):
        faults.append(f"breaks its derived bound: {candidate.reason}")
    before = {m.output: m for m in baseline.outputs}
    pairs = [(before[m.output], m) for m in candidate.outputs if m.output in before]
    if missing := sorted(before.keys() - {m.output for m in candidate.outputs}):
        faults.append(f"gives no {', '.join(missing)}")
    ratio = max((_ratio(*pair) for pair in pairs), default=1.0)
    bias = max((_bias(m) for _, m in pairs), default=0.0)
    special = max((m.not_finite - was.not_finite for was, m in pairs), default=0)
    if ratio > _RATIO:
        faults.append(f"error {ratio:.3g}x the baseline's, at most {_RATIO:g}x allowed")
    if any(_biased(*pair) for pair in pairs):
        faults.append(f"bias {bias:.2g} RMS, at most {_BIAS:g} allowed")
    if special > 0:
        faults.append(f"{special} more NaN or infinite than before")
    return Admitted(candidate.case, candidate.op, ratio, bias, special, flips, bounds, tuple(faults))


def _keeps(result: Result) -> bool:
    """Return True if an answer conforms by itself, not because a waiver accepts it."""
    return result.conforms and result.status != verdict.WAIVED


def _ratio(was: Metrics, now: Metrics) -> float:
    if not math.isfinite(now.relative_l2):
        return math.inf if math.isfinite(was.relative_l2) else 1.0
    return max(now.relative_l2, _LEAST) / max(was.relative_l2, _LEAST) if math.isfinite(was.relative_l2) else 1.0


def _bias(m: Metrics) -> float:
    """Return the mean error over the RMS error; 0 where all errors are below float32's rounding."""
    if m.engine is None or not m.engine.rms or m.relative_l2 <= _LEAST:
        return 0.0
    return abs(m.engine.bias) / m.engine.rms


def _biased(was: Metrics, now: Metrics) -> bool:
    """Return True for a bias that is above the limit, beyond chance, and not the baseline's own."""
    same = was.engine is not None and now.engine is not None and was.engine == now.engine
    return not same and _bias(now) > max(_BIAS, _CHANCE / math.sqrt(max(math.prod(now.shape), 1)))


def admission(refsd: str, engines: dict[str, str], cases: Sequence[Admitted], refused: Sequence[str]) -> Admission:
    """Sum up the cases. refsd: its version"""
    worst = max(cases, key=lambda case: case.ratio, default=None)
    mean = math.exp(sum(math.log(case.ratio) for case in cases) / len(cases)) if cases else 1.0
    admitted = bool(cases) and not any(case.faults for case in cases)
    name = worst.case if worst else ""
    return Admission(refsd, RULE, engines, [*cases], [*refused], admitted, mean, name)


def of_results(
    refsd: str, engines: dict[str, str], baseline: Iterable[Result], candidate: Iterable[Result]
) -> Admission:
    """Compare two stored runs, case by case."""
    before, after = ({result.case: result for result in results} for results in (baseline, candidate))
    cases = [compare(was, after[name]) for name, was in before.items() if name in after and _answered(was)]
    compared = {case.case for case in cases}
    return admission(refsd, engines, cases, sorted({*before, *after} - compared))


def _answered(result: Result) -> bool:
    return result.status not in (verdict.REFUSED, verdict.ERROR)


def of_engines(
    runner: Runner,
    baseline: Engine,
    candidate: Engine,
    cases: Iterable[Case],
    refsd: str,
    done: Callable[[str], None] = lambda case: None,
) -> Admission:
    """Ask both engines each case. The engines' names must differ. done: called after each case with its name"""
    compared: list[Admitted] = []
    refused: list[str] = []
    for case in cases:
        if baseline.refuses(case) is not None:
            refused.append(case.name)
            done(case.name)
            continue
        heard: dict[str, Answered] = {}
        hearing = runner._replace(measured=lambda answered, heard=heard: heard.update({answered.engine: answered}))
        was, now = run(hearing, [baseline, candidate], [case])
        if not _answered(was):
            refused.append(case.name)
            done(case.name)
            continue
        both = len(heard) == 2
        flips = _flips(*(heard[engine.name] for engine in (baseline, candidate))) if both else None
        compared.append(compare(was, now, flips))
        done(case.name)
    return admission(refsd, {e.name: e.version for e in (baseline, candidate)}, compared, refused)


def _flips(was: Answered, now: Answered) -> int | None:
    """Count the whole numbers of a stage in which the candidate differs from the baseline; None without any."""
    if not was.standard.case.op.startswith("stage/"):
        return None
    whole = [name for name, y in was.standard.truth.items() if np.array_equal(y, np.rint(y))]
    pairs = [(was.actual[name], now.actual[name]) for name in whole if name in was.actual and name in now.actual]
    return sum(int(np.sum(a != b)) for a, b in pairs if a.shape == b.shape) if pairs else None
