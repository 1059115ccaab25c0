"""Whether an engine meets a profile: every case of it judged, and passed."""

from collections import Counter
from collections.abc import Sequence

from refsd.golden import verdict
from refsd.golden.report import Report, Result
from refsd.golden.wording import counted

_CASES = 4
_WORDS = {
    verdict.FAIL: "fails",
    verdict.ERROR: "ends in an error",
    verdict.DEVIATES: "deviates",
    verdict.WAIVED: "is waived",
    verdict.REFUSED: "is refused",
    "": "is not judged",
}


def standing(results: Sequence[Result], names: Sequence[str]) -> dict[str, list[str]]:
    """Sort the cases of a profile by an engine's status: "pass", ..., "" for a case without a result."""
    of = {r.case: r.status for r in results}
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(of.get(name, ""), []).append(name)
    return found


def unmet(report: Report, names: Sequence[str]) -> list[str]:
    """List what keeps engines from meeting the report's profile, a line for each engine and status.

    Failures are left out: they are in the report in any case. names: the profile's cases
    """
    lines = []
    for engine in report.engines:
        found = standing(report.of(engine), names)
        for status in (verdict.REFUSED, verdict.WAIVED, ""):
            cases = found.get(status, [])
            if cases:
                shown = ", ".join(cases[:_CASES])
                more = f" and {len(cases) - _CASES} more" if len(cases) > _CASES else ""
                counts = _counts(len(cases), len(names), status)
                lines.append(f"{engine} does not meet {report.profile}: {counts}: {shown}{more}")
    return lines


def verdict_of(results: Sequence[Result], profile: str, names: Sequence[str]) -> str:
    """State in a line whether an engine meets a profile: "meets 2026.11/sd15, 13 of 13 cases"."""
    found = standing(results, names)
    if not found.keys() - {verdict.PASS}:
        return f"meets {profile}: all of {counted(len(names), 'case')} pass"
    counts = Counter({status: len(cases) for status, cases in found.items() if status != verdict.PASS})
    rest = ", ".join(_counts(n, len(names), status) for status, n in counts.most_common())
    return f"does not meet {profile}: {rest}"


def _counts(n: int, of: int, status: str) -> str:
    return f"{n} of {counted(of, 'case')} {_WORDS[status]}"
