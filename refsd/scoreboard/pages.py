"""The pages of the board: the board itself, one for each run, and how to add an engine."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from xml.etree.ElementTree import Element

from refsd.golden.wording import counted
from refsd.reports import html
from refsd.reports.cells import margin_text
from refsd.reports.html.elements import Child, add, element, listed
from refsd.reports.html.frame import document
from refsd.scoreboard.cells import bad, cell, judged, title, total
from refsd.scoreboard.families import FAMILIES, family
from refsd.scoreboard.runs import Failing, Run
from refsd.scoreboard.trend import share, trend

_HERE = Path(__file__).parent
_STYLE = (Path(html.__file__).parent / "page.css").read_text("utf-8") + (_HERE / "board.css").read_text("utf-8")
_SCRIPT = (_HERE / "board.js").read_text("utf-8")
_LEGEND = (
    "\u2713 all judged cases conform; \u2717 how many do not; ~ some are waived; \u2013 the engine refuses all; "
    "empty: not asked"
)


def board(runs: Sequence[Run]) -> str:
    """Make the board's page. runs: sorted"""
    latest = newest(runs)
    engines = len({run.engine for run in runs})
    cases = sum(judged(total(run.counts.values())) for run in runs)
    days = sorted({run.date for run in runs if run.date})
    said = f"{counted(engines, 'engine')}, {counted(len(runs), 'run')}, {counted(cases, 'verdict')}"
    header = element("header", element("h1", "refsd scoreboard", class_="plain"))
    header.append(element("p", f"{said}{f', up to {days[-1]}' if days else ''}.", class_="dim"))
    parts = {"#engines": "Engines", "#operations": "Operations", "#trend": "Trend", "add.html": "Add your engine"}
    links: list[Child] = [element("a", text, href=href) for href, text in parts.items()]
    header.append(element("nav", listed(links), aria_label="Parts of the board"))
    main = element("main", _engines(runs, latest), _operations(latest), _trends(runs), id="main")
    return _page("refsd scoreboard", header, main)


def newest(runs: Sequence[Run]) -> list[Run]:
    """Return the last run of each engine on each device. runs: sorted"""
    last = {(run.engine, run.device): run for run in runs}
    return list(last.values())


def _page(name: str, header: Element, main: Element) -> str:
    return document(name, _STYLE, _SCRIPT, header, main)


def _engines(runs: Sequence[Run], latest: Sequence[Run]) -> Element:
    section = element("section", element("h2", "Engines"), id="engines")
    section.append(element("p", _LEGEND + ". Each cell leads to its cases.", class_="dim"))
    section.append(_controls(len(runs) > len(latest)))
    families = [name for name in FAMILIES if any(family(op) == name for run in runs for op in run.counts)]
    columns = [element("th", name, scope="col") for name in families]
    head = element("tr", element("th", "engine", scope="col"), element("th", "all", scope="col"), *columns)
    table = element("table", element("thead", head), class_="board", id="runs")
    body = element("tbody")
    current = {run.slug for run in latest}
    for run in runs:
        body.append(_row(run, families, run.slug in current))
    table.append(body)
    section.append(_wide(table, "Engines"))
    section.append(element("p", "No run fits the filter.", id="empty", hidden=True))
    return section


def _controls(old: bool) -> Element:
    text = element("input", id="filter", type="search", placeholder="ggml, 0.9, RTX", autocomplete="off")
    only = element("select", id="only")
    for value, words in (("", "all"), ("bad", "with failures"), ("good", "without failures")):
        add(only, element("option", words, value=value))
    labels = [
        element("label", "Engine, version or device ", text),
        element("label", "Show ", only),
        element(
            "label",
            "Operation ",
            element("input", id="op", type="search", placeholder="conv2d", autocomplete="off"),
        ),
    ]
    if old:
        labels.append(element("label", element("input", id="old", type="checkbox"), " older runs too"))
    hint = element("span", element("kbd", "/"), " search", class_="dim")
    return element("p", *labels, hint, class_="controls")


def _row(run: Run, families: Sequence[str], current: bool) -> Element:
    counts = total(run.counts.values())
    name = element("a", run.engine, href=f"runs/{run.slug}.html")
    version = run.version.partition(" (")[0]
    facts = " \u00b7 ".join(filter(None, [version, run.device, run.driver, run.date, run.profile]))
    head = element("th", name, element("span", facts, class_="facts"), scope="row")
    if run.submitted:
        head.append(
            element("span", "submission", class_="badge", title="sent in; verdicts given again from its metrics")
        )
    row = element("tr", head, cell(counts, f"runs/{run.slug}.html"))
    row.set("data-bad", str(bad(counts)))
    if not current:
        row.set("data-old", "1")
    for column in families:
        of = total(of for op, of in run.counts.items() if family(op) == column)
        row.append(cell(of, f"runs/{run.slug}.html#{_anchor(column)}"))
    return row


def _operations(latest: Sequence[Run]) -> Element:
    section = element("section", element("h2", "Operations"), id="operations")
    section.append(element("p", "The last run of each engine on each device.", class_="dim"))
    columns = (element("th", element("a", run.engine, href=f"runs/{run.slug}.html"), scope="col") for run in latest)
    head = element("tr", element("th", "operation", scope="col"), *columns)
    table = element("table", element("thead", head), class_="board", id="ops")
    for name in FAMILIES:
        ops = sorted({op for run in latest for op in run.counts if family(op) == name})
        if not ops:
            continue
        span = element("th", name, scope="rowgroup", colspan=len(latest) + 1)
        body = element("tbody", element("tr", span, class_="op"))
        for op in ops:
            cells = (cell(run.counts.get(op, {}), f"runs/{run.slug}.html#{_anchor(op)}") for run in latest)
            body.append(element("tr", element("th", op, scope="row"), *cells))
        table.append(body)
    section.append(_wide(table, "Operations"))
    return section


def _trends(runs: Sequence[Run]) -> Element:
    section = element("section", element("h2", "Trend"), id="trend")
    section.append(
        element("p", "The share of judged cases that conform, run by run of an engine on a device.", class_="dim")
    )
    single = []
    for (engine, device), group in groupby(runs, key=lambda run: (run.engine, run.device)):
        of = list(group)
        if len(of) == 1:
            single.append(engine)
            continue
        caption = element(
            "figcaption", f"{', '.join(filter(None, [engine, device]))}: {of[0].version} to {of[-1].version}"
        )
        section.append(element("figure", caption, trend(of), class_="trend"))
    if single:
        section.append(element("p", f"One run only: {', '.join(single)}.", class_="dim"))
    return section


def run_page(run: Run) -> str:
    """Make the page of a run: its operations, and the cases that do not conform, with place and cause."""
    counts = total(run.counts.values())
    header = element("header", element("h1", run.engine, class_="bad" if bad(counts) else "fine"))
    header.append(element("nav", listed([element("a", "Scoreboard", href="../index.html")]), aria_label="Board"))
    facts = {"version": run.version, "device": run.device, "driver": run.driver, "date": run.date}
    facts |= {"profile": run.profile, "refsd": run.refsd, "verdicts": title(counts)}
    facts |= {"conform": f"{share(run):.1%} of what was judged", "statement": run.statement}
    listing = element("dl")
    for term, value in facts.items():
        if value:
            add(listing, element("dt", term))
            add(listing, element("dd", value))
    main = element("main", listing, id="main")
    main.append(_operations_of(run))
    main.append(_failing_of(run))
    if run.refused:
        lines: list[Child] = [f"{counted(n, 'case')}: {why}" for why, n in run.refused]
        main.append(element("section", element("h2", "Refused"), listed(lines)))
    return _page(f"{run.engine}: refsd scoreboard", header, main)


def _operations_of(run: Run) -> Element:
    section = element("section", element("h2", "Operations"))
    head = element("tr", *(element("th", text, scope="col") for text in ("operation", "cases", "worst margin")))
    table = element("table", element("thead", head), class_="board small")
    failing = {failing.op for failing in run.failing}
    for name in FAMILIES:
        ops = [op for op in run.counts if family(op) == name]
        if not ops:
            continue
        body = element("tbody", id=_anchor(name))
        body.append(element("tr", element("th", name, scope="rowgroup", colspan=3), class_="op"))
        for op in ops:
            link = f"#failing-{_anchor(op)}" if op in failing else ""
            row = element("tr", element("th", op, scope="row"), cell(run.counts[op], link), id=_anchor(op))
            row.append(element("td", margin_text(run.margins[op]) if op in run.margins else ""))
            body.append(row)
        table.append(body)
    section.append(_wide(table, "Operations"))
    return section


def _failing_of(run: Run) -> Element:
    section = element("section", element("h2", "What does not conform"), id="failing")
    if not run.failing:
        section.append(element("p", "Every judged case conforms."))
    by_op: dict[str, list[Failing]] = {}
    for one in run.failing:
        by_op.setdefault(one.op, []).append(one)
    for op, cases in by_op.items():
        section.append(element("h3", f"{op}: {counted(len(cases), 'case')}", id=f"failing-{_anchor(op)}"))
        for one in cases:
            section.append(_case(one))
    if run.left_out:
        section.append(element("p", f"and {run.left_out} more cases, in the report."))
    return section


def _case(one: Failing) -> Element:
    badge = element("span", one.status, class_=f"badge {one.status}")
    article = element("article", element("h4", badge, one.case), class_="waived" if one.status == "waived" else "")
    facts = element("dl")
    for term, value in _facts(one).items():
        if value:
            add(facts, element("dt", term))
            add(facts, element("dd", value))
    article.append(facts)
    if one.reason:
        article.append(element("p", one.reason, class_="dim"))
    return article


def _facts(one: Failing) -> Mapping[str, str]:
    return {
        "margin": f"{margin_text(one.margin)} (above 1 fails)" if one.status != "error" else "",
        "first wrong place": one.place,
        "cause": "; or ".join(one.causes),
        "declared numerics": one.numerics,
    }


def add_page() -> str:
    """Make the page that says how to add an engine."""
    header = element("header", element("h1", "Add your engine", class_="plain"))
    header.append(element("nav", listed([element("a", "Scoreboard", href="index.html")]), aria_label="Board"))
    main = element("main", id="main")
    for heading, text, commands in _STEPS:
        main.append(element("h2", heading))
        main.append(element("p", text))
        if commands:
            main.append(element("pre", element("code", "\n".join(commands))))
    return _page("Add your engine: refsd scoreboard", header, main)


_STEPS: Sequence[tuple[str, str, Sequence[str]]] = (
    (
        "1. Let refsd run it",
        "Engines that refsd knows are named on the command line. Any other is a program that reads a request and "
        "writes its answer: one page of protocol, refsd/engines/exec/protocol.md, with examples in C++ and Python.",
        ("refsd conform ggml:/path/to/libggml.so", "refsd conform exec:./my_engine --cases 'conv2d/*'"),
    ),
    (
        "2. Declare what it rounds",
        "An engine is judged by the numerics that it declares: what it stores, multiplies and adds up in which "
        "type. Nobody is held to float32 who says bfloat16, and nobody who says float32 passes with less.",
        (),
    ),
    (
        "3. Run a profile, and pack the run",
        "The file holds metrics, small outputs and sketches of the others; no paths and no names.",
        ("refsd conform exec:./my_engine --profile 2026.11/ops --submission mine.zip --device 'RTX 4090'",),
    ),
    (
        "4. Send the file",
        "Whoever keeps the board verifies it, puts it into the folder of submissions, and makes the board again. "
        "The verdicts on the board are given again from the metrics in the file.",
        ("refsd verify-submission mine.zip", "refsd scoreboard submissions -o site"),
    ),
)


def _wide(table: Element, label: str) -> Element:
    return element("div", table, class_="wide", tabindex=0, role="region", aria_label=label)


def _anchor(text: str) -> str:
    return text.replace(" ", "-").replace("/", "-")
