"""A conformance report for people (a table, Markdown) and for machines (JSON, JUnit)."""

import math
from collections import Counter
from xml.etree import ElementTree

import msgspec
from rich.table import Table

from refsd.golden import verdict
from refsd.golden.conform import Report, Result
from refsd.golden.wording import counted
from refsd.numerics.errors import BadInput
from refsd.numerics.printable import in_markdown, printable

# Worst first: a cell shows the worst that happened in it.
_ORDER = (verdict.FAIL, verdict.ERROR, verdict.DEVIATES, verdict.WAIVED, verdict.PASS, verdict.REFUSED)
_STYLE = {
    verdict.FAIL: "bold red",
    verdict.ERROR: "bold red",
    verdict.DEVIATES: "yellow",
    verdict.WAIVED: "cyan",
    verdict.PASS: "green",
    verdict.REFUSED: "dim",
}


def worst(results: list[Result]) -> Result | None:
    """The result that came nearest to its limit, or passed it furthest; None if none ran."""
    ran = [r for r in results if r.status != verdict.REFUSED]
    return min(ran, key=lambda r: (_ORDER.index(r.status), -r.margin)) if ran else None


def margin_text(margin: float) -> str:
    """Two decimals, rounded away from 1, so that a pass never reads as 1; "inf" where nothing was allowed."""
    if margin <= 1:
        return f"{math.floor(margin * 100) / 100:.2f}"
    return "inf" if margin >= verdict.INFINITE else f"{margin + 0.005:.2f}" if margin < 10 else f"{margin:.3g}"


def cell(results: list[Result]) -> tuple[str, str]:
    """A cell of the table, and its status: "12 pass, 0.25"; "-" where every case is refused."""
    last = worst(results)
    if last is None:
        return "-", verdict.REFUSED
    counts = Counter(r.status for r in results if r.status != verdict.REFUSED)
    said = " ".join(f"{counts[status]} {status}" for status in reversed(_ORDER) if counts[status])
    return f"{said}, {margin_text(last.margin)}", last.status


def _grid(report: Report) -> tuple[list[str], list[str], dict[tuple[str, str], list[Result]]]:
    ops = list(dict.fromkeys(r.op for r in report.results))
    cells: dict[tuple[str, str], list[Result]] = {}
    for r in report.results:
        cells.setdefault((r.op, r.engine), []).append(r)
    return ops, list(report.engines), cells


def summary(report: Report) -> Table:
    """A line an engine: how many cases had which outcome, and the worst margin."""
    grid = Table(title="cases by outcome (worst margin: value / allowed, above 1 fails)", title_style="dim")
    grid.add_column("engine", no_wrap=True)
    grid.add_column("outcome")
    for name in report.engines:
        text, status = cell(report.of(name))
        said, _, margin = text.partition(", ")
        grid.add_row(name, f"[{_STYLE[status]}]{said}{f' ({margin})' if margin else ''}[/]")
    return grid


def table(report: Report) -> Table:
    """Operations down, engines across; passes are a bare number, and the worst margin stands in brackets."""
    ops, engines, cells = _grid(report)
    grid = Table(title="cases by outcome (worst margin: value / allowed, above 1 fails)", title_style="dim")
    grid.add_column("operation", no_wrap=True)
    for name in engines:
        grid.add_column(name, overflow="fold")
    for op in ops:
        if all(worst(cells.get((op, name), [])) is None for name in engines):
            continue
        row = []
        for name in engines:
            text, status = cell(cells.get((op, name), []))
            short = text.replace(f" {verdict.PASS}", "")
            said, _, margin = short.partition(", ")
            row.append(f"[{_STYLE[status]}]{said}{f' ({margin})' if margin else ''}[/]")
        grid.add_row(op, *row)
    return grid


def failures(report: Report) -> list[Result]:
    """What does not conform, and what is waived, worst first."""
    odd = [r for r in report.results if r.status not in (verdict.PASS, verdict.REFUSED)]
    return sorted(odd, key=lambda r: (_ORDER.index(r.status), r.engine, r.case))


def refusals(report: Report, engine: str) -> list[tuple[str, int]]:
    """Why an engine does not take cases, and how many for each reason, the most frequent first."""
    reasons = Counter(r.reason for r in report.of(engine) if r.status == verdict.REFUSED)
    return reasons.most_common()


def refusals_in_short(report: Report, engine: str, most: int = 3) -> list[str]:
    """The same in at most `most` lines, and one for the rest."""
    reasons = refusals(report, engine)
    lines = [f"{engine} does not take {counted(n, 'case')}: {why}" for why, n in reasons[:most]]
    rest = reasons[most:]
    if rest:
        cases = counted(sum(n for _, n in rest), "case")
        lines.append(f"{engine} does not take {cases} for {counted(len(rest), 'other reason')}")
    return lines


def markdown(report: Report) -> str:
    """The whole report as a Markdown page."""
    ops, engines, cells = _grid(report)
    lines = [
        "# Conformance",
        "",
        f"refsd {report.refsd}. **{'Conforms' if report.conforms else 'Does not conform'}.**",
    ]
    lines += [
        "",
        "| engine | version | pass | waived | deviates | fail | error | refused |",
        "|---|---|" + "---|" * 6,
    ]
    for name in engines:
        counts = Counter(r.status for r in report.of(name))
        statuses = (verdict.PASS, verdict.WAIVED, verdict.DEVIATES, verdict.FAIL, verdict.ERROR, verdict.REFUSED)
        row = (name, in_markdown(report.engines[name]), *(str(counts[s]) for s in statuses))
        lines.append(f"| {' | '.join(row)} |")
    lines += ["", "Each cell: cases by outcome, and the worst margin (value / allowed: above 1 fails).", ""]
    lines += ["| operation | " + " | ".join(engines) + " |", "|---|" + "---|" * len(engines)]
    for op in ops:
        lines.append(f"| {op} | " + " | ".join(cell(cells.get((op, name), []))[0] for name in engines) + " |")
    if report.shortage:
        lines += ["", "## Fewer cases than expected", "", *(f"- {in_markdown(line)}" for line in report.shortage)]
    odd = failures(report)
    if odd:
        lines += ["", "## What does not agree", ""]
        lines += ["| engine | case | numerics | outcome | margin | why |", "|---|---|---|---|---|---|"]
        for r in odd:
            why = in_markdown(r.reason)
            lines.append(f"| {r.engine} | {r.case} | {r.numerics} | {r.status} | {margin_text(r.margin)} | {why} |")
    if report.shared:
        lines += ["", "What the failing cases share:", "", *(f"- {in_markdown(line)}" for line in report.shared)]
    refused = [(engine, *refusal) for engine in engines for refusal in refusals(report, engine)]
    if refused:
        lines += ["", "## Cases that an engine does not take", ""]
        lines += [f"- {engine}: {counted(n, 'case')}: {in_markdown(why)}" for engine, why, n in refused]
    if report.missing:
        lines += ["", "## Engines that were not judged", ""]
        lines += [f"- {m.name}: {in_markdown(m.why)}" for m in report.missing]
    lines += ["", "## Every case", "", "| case | engine | numerics | outcome | margin | nearest limit |"]
    lines += ["|---|---|---|---|---|---|"]
    for r in report.results:
        if r.status != verdict.REFUSED:
            row = (r.case, r.engine, r.numerics, r.status, margin_text(r.margin), r.criterion)
            lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines) + "\n"


def junit(report: Report) -> bytes:
    """JUnit XML: a suite an engine, a test a case; what is refused is skipped."""
    root = ElementTree.Element("testsuites", name="refsd conform")
    for name, version in report.engines.items():
        results = report.of(name)
        called = printable(f"{name} {version}")
        suite = ElementTree.SubElement(root, "testsuite", name=called, tests=str(len(results)))
        suite.set("failures", str(sum(r.status in (verdict.FAIL, verdict.DEVIATES) for r in results)))
        suite.set("errors", str(sum(r.status == verdict.ERROR for r in results)))
        suite.set("skipped", str(sum(r.status == verdict.REFUSED for r in results)))
        for r in results:
            test = ElementTree.SubElement(
                suite, "testcase", classname=f"{name}.{r.op}", name=r.case, time=f"{r.seconds:.6f}"
            )
            if r.status in (verdict.FAIL, verdict.DEVIATES):
                ElementTree.SubElement(test, "failure", type=r.status, message=printable(r.reason))
            elif r.status == verdict.ERROR:
                ElementTree.SubElement(test, "error", type=r.status, message=printable(r.reason))
            elif r.status == verdict.REFUSED:
                ElementTree.SubElement(test, "skipped", message=printable(r.reason))
            else:
                ElementTree.SubElement(test, "system-out").text = f"margin {margin_text(r.margin)} {r.criterion}"
    for line in report.shortage:
        suite = ElementTree.SubElement(root, "testsuite", name="corpus", tests="1", failures="1")
        test = ElementTree.SubElement(suite, "testcase", classname="corpus", name=printable(line))
        ElementTree.SubElement(test, "failure", type="fail", message=printable(line))
    return ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)


def encode(report: Report) -> bytes:
    """The report with every metric, as JSON."""
    return msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n"


def decode(data: bytes) -> Report:
    """Read what `encode` wrote. Raises BadInput."""
    try:
        return msgspec.json.decode(data, type=Report)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadInput(f"not a conformance report: {error}") from None
