"""Print a report to the terminal: verdict, causes, table, and the paths of the other forms."""

import functools
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from refsd.golden import verdict
from refsd.golden.report import Report, Result
from refsd.numerics.printable import printable
from refsd.reports.cells import SCALE, cell, grid, refusals_in_short, verdict_line, worst
from refsd.reports.groups import CAUSE, DEVIATION, ERROR, UNEXPLAINED, WAIVED, case_list, groups, next_command

# With more engines print a line for each instead of a table of operations, unless that is asked for.
_COLUMNS = 5
_NARROWEST, _FRAME = 10, 3  # characters of an engine's column; of the frame and blanks beside each column
_GROUPS = 20
_CASES = 3
_STYLE = {
    verdict.FAIL: "bold red",
    verdict.ERROR: "bold red",
    verdict.DEVIATES: "yellow",
    verdict.WAIVED: "cyan",
    verdict.PASS: "green",
    verdict.REFUSED: "dim",
}


def print_report(
    report: Report,
    pages: Path,
    as_table: bool = False,
    arguments: Mapping[str, str] = MappingProxyType({}),
    store: str = "",
) -> None:
    """Print a report.

    pages:    the folder with the other forms of the report
    as_table: tabulate the operations even where all engines conform, or are many
    arguments:    engine -> the argument that names it, for the command below each failure
    store:    the folder of the goldens, if there is one
    """
    console = Console(emoji=False)
    say = functools.partial(console.print, markup=False, highlight=False, soft_wrap=True)
    say(verdict_line(report), style="bold green" if report.conforms and report.engines else "bold red")
    found = groups(report)
    for group in found[:_GROUPS]:
        say(group.heading(report.baseline), style={DEVIATION: "yellow", WAIVED: "cyan"}.get(group.kind, "red"))
        say(f"    {case_list(group.results, _CASES)}")
        if group.kind not in (ERROR, WAIVED):
            say(f"    {group.results[0].reason}")
        if group.kind in (CAUSE, UNEXPLAINED, ERROR) and group.engine in arguments:
            say(f"    next: {next_command(report, group, arguments, pages)}", style="dim")
    if len(found) > _GROUPS:
        say(f"... and {len(found) - _GROUPS} more, in {pages / 'report.html'}")
    for line in report.shared:
        say(line)
    if all(r.conforms for r in report.results) and not as_table:
        for name in report.engines:
            if report.of(name) or not report.partial:
                say(_conforming(name, report.of(name)), style="green")
        for program in (one for one in arguments.values() if one.startswith("exec:") and not report.partial):
            more = "asks for other shapes and parameters than the cases'"
            say(f"next: {shlex.join(('refsd', 'fuzz', program))} {more}", style="dim")
    else:
        say(f"cases by outcome ({SCALE})", style="dim")
        columns = list(_columns(report, console.width))
        fits = len(columns) == 1 and len(report.engines) <= _COLUMNS
        for rows in [table(report, names) for names in columns] if as_table or fits else [summary(report)]:
            console.print(rows)
    for name, version in report.engines.items():
        say(f"{name} {version}", style="dim")
    for name in report.engines:
        for line in refusals_in_short(report, name):
            say(line, style="dim")
    for line in report.shortage:
        say(f"too few: {line}")
    for engine in report.missing:
        say(f"not judged: {engine.name}: {engine.why}")
    if report.baseline is not None:
        for engine, case in report.baseline.fixed[:_GROUPS]:
            say(f"fixed: {engine}  {case}")
    for line in report.notes:
        say(line)
    say(f"written: {pages / 'report.html'}, report.md, conform.json, junit.xml{store and f'; goldens: {store}'}")


def _conforming(name: str, results: Sequence[Result]) -> str:
    """Count the cases of an engine that conforms: "torch-bf16: 412 of 412 conform"."""
    taken = [r.status for r in results if r.status != verdict.REFUSED]
    waived = taken.count(verdict.WAIVED)
    if not taken:
        return f"{name}: took no case"
    return f"{name}: {len(taken)} of {len(taken)} conform" + (f", {waived} waived" if waived else "")


def _columns(report: Report, width: int) -> Iterator[list[str]]:
    """Divide the engines into tables of at most `width` characters that show their names whole."""
    room = width - max(map(cell_len, ("operation", *(printable(op) for op in grid(report))))) - _FRAME - 1
    names: list[str] = []
    left = room
    for name in report.engines:
        wide = max(cell_len(printable(name)), _NARROWEST) + _FRAME
        if names and wide > left:
            yield names
            names, left = [], room
        names.append(name)
        left -= wide
    yield names


def summary(report: Report) -> Table:
    """Summarise each engine in a line: the number of cases with each status, and the worst margin."""
    rows = _table("engine", ["outcome"])
    for name in report.engines:
        rows.add_row(escape(printable(name)), _styled(report.of(name)))
    return rows


def table(report: Report, names: Sequence[str]) -> Table:
    """Tabulate operations (rows) by engines (columns). A cell has the counts of statuses and the worst margin.

    Passes are a bare number; the margin stands in brackets.
    """
    rows = _table("operation", [escape(printable(name)) for name in names])
    for op, cells in grid(report).items():
        if any(worst(results) is not None for results in cells.values()):
            row = (_styled(cells.get(name, []), f" {verdict.PASS}") for name in names)
            rows.add_row(escape(printable(op)), *row)
    return rows


def _table(first: str, others: Sequence[str]) -> Table:
    rows = Table()
    rows.add_column(first, no_wrap=True)
    for name in others:
        rows.add_column(name, overflow="fold", min_width=cell_len(name))
    return rows


def _styled(results: Sequence[Result], without: str = "") -> str:
    text, status = cell(results)
    said, _, margin = (text.replace(without, "") if without else text).partition(", ")
    return f"[{_STYLE[status]}]{said}{f' ({margin})' if margin else ''}[/]"
