"""Compare two reports: which cases got worse, which got better, which are new."""

from collections.abc import Mapping

import msgspec

from refsd.golden import verdict
from refsd.golden.cause_kinds import kinds
from refsd.golden.report import Baseline, Pair, Report, Result
from refsd.numerics.errors import BadInput

# Margins below this count as equal: far below the limit, a mere change in the order of sums moves them.
LEAST_MARGIN = 0.1


class Change(msgspec.Struct, frozen=True):
    """One case of one engine. Statuses are those of golden/verdict.py; "" if the report lacks the case."""

    engine: str
    case: str
    old: str
    new: str
    old_margin: float
    new_margin: float
    reason: str = ""


class Changes(msgspec.Struct, frozen=True):
    """The differences between an old and a new report.

    worse:    cases that newly fail, that are no longer judged, or whose margin grew by `factor`
    better:   cases that newly pass or are newly judged, or whose margin shrank by `factor`
    other:    cases with another status that is neither better nor worse, such as waived or refused
    gone:     engines that only the old report judged
    only_old: number of answers that only the old report has
    only_new: number of answers that only the new report has; the failing ones are also in `worse`
    """

    worse: list[Change]
    better: list[Change]
    other: list[Change]
    gone: list[str]
    only_old: int
    only_new: int

    @property
    def got_worse(self) -> bool:
        return bool(self.worse or self.gone)


def compare(old: Report, new: Report, factor: float) -> Changes:
    """Compare two reports. factor: ratio of margins that counts as a change.

    Raises BadInput if the reports have no answer in common.
    """
    before, after = _by_pair(old), _by_pair(new)
    if not before.keys() & after.keys():
        raise BadInput("the two reports have no case of one engine in common")
    found: dict[str, list[Change]] = {"worse": [], "better": [], "other": []}
    for pair, now in after.items():
        then = before.get(pair)
        kind = _kind(then, now, factor)
        if kind:
            status, margin = (then.status, then.margin) if then is not None else ("", 0.0)
            found[kind].append(Change(*pair, status, now.status, margin, now.margin, now.reason))
    gone = [name for name in old.engines if _ran(old, name) and not _ran(new, name)]
    only_old, only_new = len(before.keys() - after.keys()), len(after.keys() - before.keys())
    return Changes(**found, gone=gone, only_old=only_old, only_new=only_new)


def failing(report: Report) -> list[Pair]:
    return [(r.engine, r.case) for r in report.results if not r.conforms]


def against(old: Report, new: Report, name: str) -> Baseline:
    """Divide the failures into those new, known and fixed since a baseline. name: the baseline's file name"""
    before, after = _by_pair(old), _by_pair(new)
    then = {pair for pair in failing(old) if pair not in after or not _another_bug(before[pair], after[pair])}
    judged = {pair for pair, r in after.items() if r.status != verdict.REFUSED}
    now = failing(new)
    return Baseline(
        name,
        new=[pair for pair in now if pair not in then],
        known=[pair for pair in now if pair in then],
        fixed=[pair for pair in failing(old) if pair in judged and after[pair].conforms],
        unseen=[pair for pair in failing(old) if pair not in judged],
        shortage=[line for line in new.shortage if line not in old.shortage],
    )


def _another_bug(old: Result, new: Result) -> bool:
    """Return True if a failing case has another cause than before, and a margin that grew by 2."""
    then, now = ({kind for text in r.causes for kind in kinds(text)} for r in (old, new))
    return bool(then) and bool(now) and then.isdisjoint(now) and new.margin > 2 * old.margin


def _by_pair(report: Report) -> Mapping[Pair, Result]:
    return {(r.engine, r.case): r for r in report.results}


def _ran(report: Report, engine: str) -> bool:
    return any(r.status != verdict.REFUSED for r in report.of(engine))


def _kind(old: Result | None, new: Result, factor: float) -> str:
    """Classify a change: "worse", "better", "other", or "" for no change."""
    if old is None:
        return "" if new.conforms else "worse"
    if old.conforms != new.conforms:
        if old.conforms:
            return "worse"
        return "better" if new.status == verdict.PASS else "other"
    if old.status != new.status:
        return "worse" if new.status == verdict.REFUSED else "other"
    was, now = max(old.margin, LEAST_MARGIN), max(new.margin, LEAST_MARGIN)
    if now >= factor * was:
        return "worse"
    return "better" if was >= factor * now else ""
