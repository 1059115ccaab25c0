"""Tabulate every case of every engine: a table body for each operation, a row a case, a column an engine."""

from collections.abc import Mapping, Sequence
from xml.etree.ElementTree import Element

from refsd.golden import verdict
from refsd.golden.report import Pair, Report, Result
from refsd.golden.wording import counted
from refsd.reports.cells import cell, grid, margin_text
from refsd.reports.html.elements import element

# Limit in characters; beyond it, only cases that do not conform get a row, and of an operation at most _WORST.
_ROOM = 400_000
_WORST = 200
_CELL = 40
_WORD = {verdict.PASS: "", verdict.REFUSED: "-"}


def matrix(report: Report, ids: Mapping[Pair, str]) -> Element:
    """Make the table. ids: (engine, case) -> the answer's anchor in the page"""
    names = list(report.engines)
    table = element("table", class_="matrix")
    head = element("tr", element("th", "case", scope="col"), *(element("th", name, scope="col") for name in names))
    table.append(element("thead", head))
    room = _ROOM
    for op, cells in grid(report).items():
        cases: dict[str, dict[str, Result]] = {}
        for results in cells.values():
            for r in results:
                cases.setdefault(r.case, {})[r.engine] = r
        bad = any(not r.conforms for results in cells.values() for r in results)
        room -= sum(len(case) + 30 + _CELL * len(names) for case in cases)
        if room > 0:
            shown = list(cases)
        else:
            shown = [case for case, found in cases.items() if not all(r.conforms for r in found.values())][:_WORST]
        rows = [_row(case, cases[case], names, ids) for case in shown]
        if room <= 0 and shown:
            more = f"and {counted(len(cases) - len(shown), 'other case')}, in conform.json"
            rows.append(element("tr", element("th", more, scope="row"), *(element("td") for _ in names)))
        body = element("tbody", _head(op, cells, names, len(cases)), *rows, class_="bad" if bad else "good")
        table.append(body)
    return table


def _head(op: str, cells: Mapping[str, Sequence[Result]], names: Sequence[str], cases: int) -> Element:
    row = element("tr", class_="op")
    row.append(
        element(
            "th",
            element("button", op, type="button", aria_expanded="true"),
            f" {counted(cases, 'case')}",
            scope="row",
        )
    )
    for name in names:
        text, status = cell(cells.get(name, []))
        row.append(element("td", text, class_=status))
    return row


def _row(case: str, found: Mapping[str, Result], names: Sequence[str], ids: Mapping[Pair, str]) -> Element:
    row = element("tr", element("th", case, scope="row"))
    for name in names:
        r = found.get(name)
        if r is None:
            row.append(element("td"))
            continue
        word = _WORD.get(r.status, f"{r.status} ")
        text = word if r.status == verdict.REFUSED else f"{word}{margin_text(r.margin)}"
        anchor = ids.get((name, case))
        row.append(element("td", element("a", text, href=f"#{anchor}") if anchor else text, class_=r.status))
    return row
