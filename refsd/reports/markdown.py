"""Write a report as Markdown for a CI job's summary: verdict and causes first, the rest collapsed."""

import shlex
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping

from refsd.golden import verdict
from refsd.golden.report import Report, Result
from refsd.golden.wording import counted
from refsd.numerics.printable import in_markdown
from refsd.reports.cells import ORDER, SCALE, cell, grid, margin_text, of_lacking_operations, refusals, verdict_line
from refsd.reports.groups import ERROR, WAIVED, Group, groups

# GitHub accepts 1 MiB; conform.json has everything that is left out here.
_GROUPS = 40
_ROWS = 300
_LINES = 200
_CASES = 4
_PASTED = 3  # groups
_REASON = 400  # characters in a reason


def markdown(report: Report) -> str:
    """Format the report; a CI job appends it to $GITHUB_STEP_SUMMARY."""
    line = verdict_line(report)
    lines = [f"# {in_markdown(line[0].upper() + line[1:])}", ""]
    found = groups(report)
    for group in found[:_GROUPS]:
        lines += _group(report, group)
    if len(found) > _GROUPS:
        lines += [f"... and {counted(len(found) - _GROUPS, 'other group')}, in conform.json.", ""]
    lines += _items("Shared by the failing cases", report.shared)
    lines += _items("Fewer cases than expected", report.shortage)
    lines += _baseline(report)
    lines += _engines(report)
    lines += _folded("Operations", _operations(report))
    odd = [r for group in found for r in group.results]
    lines += _folded(f"What does not agree: {counted(len(odd), 'case')}", _cases(odd)) if odd else []
    refused = [(engine, *refusal) for engine in report.engines for refusal in refusals(report, engine)]
    texts = [f"{engine}: {counted(n, 'case')}: {why}" for engine, why, n in refused]
    lines += _folded("Cases that an engine does not take", _list(texts)) if refused else []
    lines += _items("Engines that were not judged", [f"{m.name}: {m.why}" for m in report.missing])
    lines += _items("Notes", report.notes)
    lines += [f"refsd {in_markdown(report.refsd)}. Every case and every metric: conform.json."]
    return "\n".join(lines) + "\n"


def pasted(report: Report, arguments: Mapping[str, str]) -> str:
    """Format the verdict in six lines, for an issue: the largest causes, their worst cases, how to see it again.

    arguments: engine -> the argument that names it
    """
    engines = ", ".join(f"{name} {version}" for name, version in report.engines.items())
    found = [group for group in groups(report) if group.kind != WAIVED]
    lines = [f"**{in_markdown(engines)} {in_markdown(verdict_line(report))}** (refsd {in_markdown(report.refsd)})"]
    for group in found[:_PASTED]:
        first = group.results[0]
        what = f"{group.heading(report.baseline).rstrip('.')}. `{first.case}`"
        what += f", {first.numerics}" if first.numerics else ""
        what += f": {first.reason}" if group.kind != ERROR else ""
        lines.append(f"- {_cut(what)}")
    if len(found) > _PASTED:
        lines.append(f"- ... and {counted(len(found) - _PASTED, 'other group')}")
    if found and found[0].engine in arguments:
        engine, case = arguments[found[0].engine], found[0].results[0].case
        lines.append(f"- again: `refsd conform {shlex.quote(engine)} --cases {shlex.quote(case)}`")
    return "\n".join(lines)


def _cut(text: str) -> str:
    """Escape a text and end it where it is long: at a word, unless that leaves less than half of it."""
    short = textwrap.shorten(text, _REASON, placeholder=" ...")
    text = " ".join(text.split())
    return in_markdown(short if 2 * len(short) >= min(_REASON, len(text)) else f"{text[: _REASON - 4]} ...")


def _group(report: Report, group: Group) -> list[str]:
    new = {*report.baseline.new} if report.baseline is not None else set()
    lines = [f"**{_cut(group.heading(report.baseline))}**", ""]
    for r in group.results[:_CASES]:
        mark = " (new)" if (r.engine, r.case) in new else ""
        lines.append(f"- {in_markdown(r.case)}{mark}, margin {margin_text(r.margin)}")
    if len(group.results) > _CASES:
        lines.append(f"- ... and {len(group.results) - _CASES} more")
    if group.kind not in (ERROR, WAIVED):
        lines += ["", f"  {_cut(group.results[0].reason)}"]
    if group.results[0].log:
        lines += ["", *(f"      {line}" for line in group.results[0].log)]
    return [*lines, ""]


def _baseline(report: Report) -> list[str]:
    if report.baseline is None:
        return []
    lines = []
    for title, pairs in (
        ("Fixed since the baseline", report.baseline.fixed),
        ("Failed in the baseline, not judged now", report.baseline.unseen),
    ):
        texts = [f"{engine}: {case}" for engine, case in pairs]
        lines += _folded(f"{title}: {len(pairs)}", _list(texts)) if pairs else []
    return lines


def _engines(report: Report) -> list[str]:
    statuses = (*reversed(ORDER[:-1]), verdict.REFUSED)
    lines = [f"| engine | version | {' | '.join(statuses)} |", "|---|---|" + "---|" * len(statuses)]
    for name, version in report.engines.items():
        counts = Counter(r.status for r in report.of(name))
        row = [in_markdown(name), in_markdown(version), *(str(counts[s]) for s in statuses)]
        if lacking := of_lacking_operations(report, name):
            ops = counted(len({r.op for r in lacking}), "operation")
            row[-1] = f"{counts[verdict.REFUSED] - len(lacking)}, and {len(lacking)} of {ops} that it lacks"
        lines.append(f"| {' | '.join(row)} |")
    return [*lines, ""]


def _operations(report: Report) -> list[str]:
    lines = [f"Each cell: cases by outcome, and the {SCALE}.", ""]
    names = [in_markdown(name) for name in report.engines]
    lines += ["| operation | " + " | ".join(names) + " |", "|---|" + "---|" * len(names)]
    for op, cells in grid(report).items():
        row = (cell(cells.get(name, []))[0] for name in report.engines)
        lines.append(f"| {in_markdown(op)} | " + " | ".join(row) + " |")
    return lines


def _cases(results: list[Result]) -> list[str]:
    lines = ["| engine | case | numerics | outcome | margin | why |", "|---|---|---|---|---|---|"]
    for r in results[:_ROWS]:
        texts = [in_markdown(text) for text in (r.engine, r.case, r.numerics, r.status)]
        lines.append(f"| {' | '.join(texts)} | {margin_text(r.margin)} | {_cut(r.reason)} |")
    return lines + ([f"\n... and {len(results) - _ROWS} more, in conform.json."] if len(results) > _ROWS else [])


def _items(title: str, texts: list[str]) -> list[str]:
    return [f"**{title}**", "", *_list(texts), ""] if texts else []


def _list(texts: Iterable[str]) -> list[str]:
    texts = list(texts)
    more = [f"- ... and {len(texts) - _LINES} more"] if len(texts) > _LINES else []
    return [*(f"- {_cut(text)}" for text in texts[:_LINES]), *more]


def _folded(title: str, lines: list[str]) -> list[str]:
    return [f"<details><summary>{in_markdown(title)}</summary>", "", *lines, "", "</details>", ""]
