"""Group failing answers by cause; those that no known bug explains, by operation and appearance of the error."""

import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from refsd.golden import verdict
from refsd.golden.cause_kinds import IN_A_CASE, NUMBER, is_all, kinds, measures
from refsd.golden.repeated_requests import LEFT_OVER
from refsd.golden.report import Baseline, Report, Result
from refsd.golden.wording import counted
from refsd.reports.cells import ORDER, margin_text
from refsd.reports.stored import FOLDER

# Kinds of group in the order of the report; those that the user can fix come first.
CAUSE, DEVIATION, UNEXPLAINED, ERROR, WAIVED = "cause", "deviation", "unexplained", "error", "waived"
_KINDS = (CAUSE, DEVIATION, UNEXPLAINED, ERROR, WAIVED)
_WAIVER = re.compile(r"[^;]* waived until .*")
_SIZE = re.compile(r"(?<=the last whole block of )\d+")
_ELEMENT = re.compile(r"in element \[[^]]*\]")
_MANY = 8  # cases of an operation that nothing explains, beside which a cause of one may be luck
_LONGEST = 240  # characters in a title


class Group(NamedTuple):
    """Failing or waived answers of one engine with a common cause.

    kind:    one of _KINDS
    title:   the common cause or appearance: "eps ten times too small"
    results: the worst first
    failing: of a cause: the failing answers of the engine, explained by it or not
    """

    engine: str
    kind: str
    title: str
    results: Sequence[Result]
    failing: int = 0

    def heading(self, baseline: Baseline | None) -> str:
        """Format the heading: "ggml, 3 of 5 failing cases: no eps", with the number known from a baseline."""
        known = {*baseline.known} if baseline is not None else set()
        old = sum((r.engine, r.case) in known for r in self.results)
        mark = f", {'all' if old == len(self.results) else old} known from the baseline" if old else ""
        some = 0 < len(self.results) < self.failing
        cases = (
            f"{len(self.results)} of {self.failing} failing cases" if some else counted(len(self.results), "case")
        )
        new = baseline is not None and (self.results[0].engine, self.results[0].case) in {*baseline.new}
        mark = ", new" if new and not old else mark
        return f"{self.engine}, {cases}{mark}: {self.title}"


def groups(report: Report) -> list[Group]:
    """Group all failing and waived answers: new beside a baseline first, then by _KINDS, then the largest."""
    found = []
    for engine in report.engines:
        odd = [r for r in report.of(engine) if r.status not in (verdict.PASS, verdict.REFUSED)]
        odd.sort(key=lambda r: (ORDER.index(r.status), -r.margin, r.case))
        explained = list(filter(_is_explained, odd))
        failing = sum(not r.conforms for r in odd)
        rest = [r for r in odd if r.status == verdict.FAIL and not r.causes]
        for kind, cause, results in _by_cause(explained):
            near = [r for r in rest if _nearly(r, kind, results)]
            rest = [r for r in rest if r not in near]
            title = f"{cause}; in {len(near)} of them nearly all of the error" if near else cause
            found.append(Group(engine, CAUSE, title, [*results, *near], failing))
        found += _grouped(engine, UNEXPLAINED, rest, lambda r: r.title)
        for status, kind, title in (
            (verdict.DEVIATES, DEVIATION, lambda r: "deviates by " + " and ".join(r.deviations)),
            (verdict.ERROR, ERROR, lambda r: r.reason),
            (verdict.WAIVED, WAIVED, _waiver),
        ):
            found += _grouped(engine, kind, [r for r in odd if r.status == status], title)
    left = Counter((g.engine, r.op) for g in found if g.kind == UNEXPLAINED for r in g.results)
    found.sort(key=lambda group: (_rank(group, left), -len(group.results)))
    new = {*report.baseline.new} if report.baseline is not None else set()
    found = [g._replace(results=sorted(g.results, key=lambda r: (r.engine, r.case) not in new)) for g in found]
    return sorted(found, key=lambda g: (g.results[0].engine, g.results[0].case) not in new)


def _rank(group: Group, left: Mapping[tuple[str, str], int]) -> int:
    """Rank a group by its kind; a cause of one case, which may fit by luck, behind many that nothing explains.

    left: engine and operation -> its cases that nothing explains
    """
    lucky = len(group.results) == 1 and left[group.engine, group.results[0].op] >= _MANY
    return _KINDS.index(UNEXPLAINED if lucky and group.kind == CAUSE else group.kind)


def shared_causes_first(results: Sequence[Result]) -> list[Result]:
    """Put the cause under which a failure is reported before the others that explain it."""
    led = {}
    for engine in {r.engine for r in results}:
        for kind, _, own in _by_cause([r for r in results if r.engine == engine and _is_explained(r)]):
            led |= {(engine, r.case): next(text for text in r.causes if kind in kinds(text)) for r in own}
    return [r.led_by(led[r.engine, r.case]) if (r.engine, r.case) in led else r for r in results]


def _nearly(r: Result, kind: str, explained: Sequence[Result]) -> bool:
    """Return True if the cause of other cases of the operation is nearly all of an unexplained error."""
    near = r.nearest
    same = near is not None and near.is_nearly_all and kind in kinds(near.cause)
    return same and any(other.op == r.op for other in explained)


def _is_explained(r: Result) -> bool:
    return r.status == verdict.FAIL and bool(r.causes)


def next_command(report: Report, group: Group, arguments: Mapping[str, str], folder: Path) -> str:
    """Return the command that reduces the group's worst failure.

    Of an answer that earlier requests spoil: one that asks all cases of its kind again, or those two of two kinds
    that follow each other; for alone it conforms.

    arguments:  engine -> the argument that names it
    folder: of the report
    """
    first = group.results[0]
    if LEFT_OVER in first.causes:
        answered = [r.case for r in report.of(group.engine) if r.status != verdict.REFUSED]
        at = answered.index(first.case)  # the first one is asked again as the last
        asked = (answered[at - 1], first.case) if at else (first.case, answered[-1])
        kinds = {case.partition("/")[0] for case in asked}
        if at and len(kinds) == 1:  # any of its kind that was asked before may have left it
            asked = (f"{kinds.pop()}/*",)
        cases = chain(*(("--cases", case) for case in dict.fromkeys(asked)))
        return f"{shlex.join(('refsd', 'conform', arguments[group.engine], *cases))}  (alone it conforms)"
    where = () if folder == FOLDER else ("--report", str(folder))
    return shlex.join(("refsd", "shrink", arguments[group.engine], first.case, *where))


def case_list(results: Sequence[Result], most: int) -> str:
    """List at most `most` cases: "layer_norm/a (margin 12), layer_norm/b (margin 3.1) and 4 more"."""
    shown = ", ".join(f"{r.case} (margin {margin_text(r.margin)})" for r in results[:most])
    return f"{shown} and {len(results) - most} more" if len(results) > most else shown


def _by_cause(results: Sequence[Result]) -> list[tuple[str, str, list[Result]]]:
    """Find few causes that explain all results: repeatedly take the one that explains most of the rest.

    -> the kind of the cause, its words, the results
    """
    left, found = list(results), []
    while left:
        # If two causes explain equally many cases, take the one that is more often the likeliest.
        votes = Counter(cause for r in left for cause in dict.fromkeys(chain(*map(kinds, r.causes))))
        first = Counter(cause for r in left for cause in kinds(r.causes[0]))
        cause = max(votes, key=lambda cause: (votes[cause], first[cause]))
        own = [r for r in left if any(cause in kinds(text) for text in r.causes)]
        # A tail that is all of a case shows the cause least.
        own.sort(key=lambda r: any(cause in kinds(text) and is_all(text) for text in r.causes))
        texts = {text for r in own for text in r.causes if cause in kinds(text)}
        found.append((cause, texts.pop() if len(texts) == 1 else _words_of(cause, own), own))
        left = [r for r in left if r not in own]
    return found


def _words_of(kind: str, results: Sequence[Result]) -> str:
    """Word the cause that results share: with all sizes of blocks that fit, or the range of what was measured."""
    texts = [[text for text in r.causes if kind in kinds(text)] for r in results]
    if any(measures(text) for text in chain(*texts)):
        common = set.intersection(*map(set, texts))
        return min(common) if common else _merged([IN_A_CASE.sub(r"\1", fitting[0]) for fitting in texts])
    alike = " ".join(set.intersection(*({*kinds(text)} for text in chain(*texts))))
    return _SIZE.sub(" or ".join(sorted(_SIZE.findall(alike), key=int)), kind)


def _grouped(engine: str, kind: str, results: Iterable[Result], title: Callable[[Result], str]) -> list[Group]:
    """Group results whose titles are equal except for their numbers."""
    found: dict[str, tuple[list[str], list[Result]]] = {}
    for r in results:
        text = title(r)[:_LONGEST]
        titles, members = found.setdefault(NUMBER.sub("#", text), ([], []))
        titles.append(text)
        members.append(r)
    return [Group(engine, kind, _merged(titles), members) for titles, members in found.values()]


def _waiver(r: Result) -> str:
    match = _WAIVER.search(r.reason)
    text = match[0].strip() if match else r.reason
    return f"{text} ({r.causes[0]})" if r.causes else text


def _merged(titles: Sequence[str]) -> str:
    """Merge titles into one; a number that differs becomes a range: "the last 3..7 of 77"."""
    if len({*titles}) > 1:
        titles = [_ELEMENT.sub("in an element of each", title) for title in titles]
    numbers = list(zip(*(NUMBER.findall(title) for title in titles), strict=True))
    ranges = iter([_range(column) for column in numbers])
    return NUMBER.sub(lambda match: next(ranges), titles[0])


def _range(column: Sequence[str]) -> str:
    low, high = min(column, key=float), max(column, key=float)
    return low if float(low) == float(high) else f"{low}..{high}"
