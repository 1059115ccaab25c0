"""Format the short texts that every form of the report shares: margins, table cells, the verdict line."""

import math
import re
from collections import Counter
from collections.abc import Sequence

from refsd.golden import verdict
from refsd.golden.report import Report, Result
from refsd.golden.wording import counted

# Worst first: a cell shows the worst status of its results.
ORDER = (verdict.FAIL, verdict.ERROR, verdict.DEVIATES, verdict.WAIVED, verdict.PASS, verdict.REFUSED)
_UNTIL = re.compile(r"waived until (\d{4}-\d{2}-\d{2})")
_REASONS = 6  # of refusals, that a line names
SCALE = "worst margin: value / allowed, above 1 fails"


def worst(results: Sequence[Result]) -> Result | None:
    """Find the result with the worst status and then the greatest margin; None if every case was refused."""
    ran = [r for r in results if r.status != verdict.REFUSED]
    return min(ran, key=lambda r: (ORDER.index(r.status), -r.margin)) if ran else None


def margin_text(margin: float) -> str:
    """Format a margin with two decimals, rounded away from 1, so that a fail never reads as 1.00.

    "inf" stands for a margin whose allowed error is 0, and for an output that is missing.
    """
    if margin <= 1:
        return f"{math.floor(margin * 100) / 100:.2f}"
    return "inf" if margin >= verdict.INFINITE else f"{margin + 0.005:.2f}" if margin < 10 else f"{margin:.3g}"


def outcomes(results: Sequence[Result]) -> str:
    """Count the statuses: "12 pass 1 fail"; empty if every case is refused."""
    counts = Counter(r.status for r in results)
    return " ".join(f"{counts[status]} {status}" for status in reversed(ORDER[:-1]) if counts[status])


def cell(results: Sequence[Result]) -> tuple[str, str]:
    """Format a table cell, "12 pass, 0.25", and give its status; "-" if every case is refused."""
    last = worst(results)
    return (
        ("-", verdict.REFUSED)
        if last is None
        else (f"{outcomes(results)}, {margin_text(last.margin)}", last.status)
    )


def grid(report: Report) -> dict[str, dict[str, list[Result]]]:
    """Group the results: operation -> engine -> results, in the report's order."""
    cells: dict[str, dict[str, list[Result]]] = {}
    for r in report.results:
        cells.setdefault(r.op, {}).setdefault(r.engine, []).append(r)
    return cells


def verdict_line(report: Report) -> str:
    """State the verdict and the counts behind it: "does not conform: 12 answers of 1 engine, 3 not conforming"."""
    ran = sum(r.status != verdict.REFUSED for r in report.results)
    bad = sum(not r.conforms for r in report.results)
    line = f"{counted(ran, 'answer')} of {counted(len(report.engines), 'engine')}, {bad} not conforming"
    line += _waived(report)
    known = report.conforms and bad > 0
    if report.baseline is not None:
        new, fixed = len(report.baseline.new), len(report.baseline.fixed)
        which = "all" if known else f"{new} new, {len(report.baseline.known)}"
        line += f": {which} known from {report.baseline.file}; {fixed} fixed"
    short = report.shortage[0] + (", ..." if len(report.shortage) > 1 else "") if report.shortage else ""
    if report.partial:
        return f"interrupted: {line}{short and f'; too few: {short}'}; {report.partial}"
    if known:
        return f"conforms but for known failures: {line}{short and f'; too few: {short}'}"
    if short and not bad and not report.conforms:
        return f"does not conform: too few answers: {short}. Those given conform: {line}"
    end = short and f"; too few: {short}"
    if report.conforms and ran and all(r.status in (verdict.WAIVED, verdict.REFUSED) for r in report.results):
        return f"conforms by waivers alone: {line}{end}"
    return f"{'conforms' if report.conforms and report.engines else 'does not conform'}: {line}{end}"


def _waived(report: Report) -> str:
    """Say how many answers are waived and until when: " (4 waived until 2027-03-31)"; "" if none is."""
    reasons = [r.reason for r in report.results if r.status == verdict.WAIVED]
    days = sorted({day for reason in reasons for day in _UNTIL.findall(reason)})
    until = f"{' until' if len(days) == 1 else ', the first until'} {days[0]}" if days else ""
    return f" ({len(reasons)} waived{until})" if reasons else ""


def refusals(report: Report, engine: str) -> list[tuple[str, int]]:
    """List the reasons why an engine refused cases, with counts.

    Those in operations of which it answered a case come first, of each the most frequent.
    """
    results = report.of(engine)
    answered = {r.op for r in results if r.status != verdict.REFUSED}
    refused = [r for r in results if r.status == verdict.REFUSED]
    own = {r.reason for r in refused if r.op in answered}
    return sorted(Counter(r.reason for r in refused).items(), key=lambda one: (one[0] not in own, -one[1]))


def of_lacking_operations(report: Report, engine: str) -> list[Result]:
    """Return the refused cases of operations that an engine lacks ("torch has no gelu"), if it takes any case."""
    results = report.of(engine)
    taken = {r.op for r in results if r.status != verdict.REFUSED}
    lacking = [
        re.search(rf"\b(no|not|not for|operation) {re.escape(r.op)}( in this .*)?\Z", r.reason) for r in results
    ]
    return [r for r, says in zip(results, lacking, strict=True) if says and r.op not in taken] if taken else []


def refusals_in_short(report: Report, engine: str) -> list[str]:
    """Say why cases were refused, the most frequent reasons first: of the operations that it answers, then how many
    others; nothing if none was. Of an engine that answers nothing: why.
    """
    results = report.of(engine)
    answered = {r.op for r in results if r.status != verdict.REFUSED}
    own = [r for r in results if r.op in answered or not answered]
    others = [r for r in results if r.op not in answered] if answered else []
    reasons = Counter(r.reason for r in own if r.status == verdict.REFUSED).most_common()
    lines = []
    if reasons:
        number, rest = sum(n for _, n in reasons), reasons[_REASONS:]
        why = [f"{reason.removeprefix(f'{engine} ')} ({n})" for reason, n in reasons[:_REASONS]]
        if rest:
            why.append(f"{counted(len(rest), 'other reason')} ({sum(n for _, n in rest)})")
        of = " of its operations" if answered else ""
        lines.append(f"{engine} does not take {number} of {counted(len(own), 'case')}{of}: {', '.join(why)}")
    if others:
        ops = counted(len({r.op for r in others}), "other operation")
        lines.append(f"{engine} does not take {ops} ({counted(len(others), 'case')})")
    return lines
