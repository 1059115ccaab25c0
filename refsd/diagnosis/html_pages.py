"""The doctor's findings as pages: of `refsd info`, `diff`, `range` and `quality`."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

from refsd.diagnosis.difference import STORAGE, Row
from refsd.diagnosis.health import Health
from refsd.diagnosis.quality import Quality, decibels, remarks
from refsd.diagnosis.ranges import FLOAT16, Range, in_order
from refsd.golden.output_file import write_file
from refsd.golden.wording import counted
from refsd.reports.html.elements import element, listed
from refsd.reports.html.frame import page
from refsd.reports.html.plots import Bar, Dot, bars, curves, dots

_ROWS = 200
_DOTS = 3000


def save(path: Path, text: str) -> None:
    """Write a page. Raises BadInput for a place that cannot be written."""
    write_file(path, text.encode("utf-8"))


def info_page(found: dict[str, Any], health: Health) -> str:
    """Write a file's findings, components, and the spread of each tensor's values."""
    blamed = {name for finding in health.findings for name in finding.tensors}
    title = health.findings[0].text if health.findings else f"{found['title'] or found['family']}: nothing wrong"
    facts = element("dl", element("dt", "file"), element("dd", found["path"]))
    for term in ("title", "because", "layout", "verdict", "values"):
        if found.get(term):
            facts.append(element("dt", term))
            facts.append(element("dd", str(found[term])))
    parts = [_section("Findings", *(_finding(one) for one in health.findings))] if health.findings else []
    parts.append(_section("The file", facts))
    held = [
        Bar((name, str(of["tensors"]), ", ".join(of["types"])), of["bytes"], f"{of['bytes'] / 2**20:.1f} MiB")
        for name, of in (found["components"] or found["prefixes"]).items()
    ]
    if held:
        parts.append(_section("Components", bars(("component", "tensors", "types", "bytes", ""), held[:_ROWS])))
    read = [one for one in health.read if not one.of.bad and one.of.count > 1]
    if read:
        caption = "Standard deviation of each tensor, in the file's order; red: named by a finding."
        shown = _thinned([Dot(one.name, one.of.deviation, one.name in blamed) for one in read])
        parts.append(_section("Values", dots(shown, caption, f"{len(read)} tensors")))
    return page(title, not health.findings, [], parts)


def diff_page(rows: Sequence[Row], old: Path, new: Path) -> str:
    """Write how each tensor of a file differs from another file's."""
    others = [row for row in rows if row.verdict not in STORAGE]
    counts = Counter(row.verdict for row in rows)
    title = f"{counted(len(others), 'tensor')} of {len(rows)} differ by more than their storage type"
    held = [Bar((verdict,), n, str(n), verdict not in STORAGE) for verdict, n in counts.most_common()]
    parts = [_section("Verdicts", bars(("verdict", "tensors", ""), held))]
    errors = [Dot(row.name, row.error, row in others) for row in rows if row.error]
    if errors:
        caption = "Relative L2 error of the tensors that are not the same, in order; red: not by the type."
        parts.append(_section("Errors", dots(_thinned(errors), caption, f"{len(errors)} tensors")))
    if others:
        worst = [
            Bar((row.name, row.verdict, row.detail), row.error or 1.0, _number(row.error), True)
            for row in others[:_ROWS]
        ]
        parts.append(_section("What differs", bars(("tensor", "verdict", "", "error", ""), worst)))
    files = element("p", f"{old} and {new}", class_="dim")
    return page(title, not others, [files], parts)


def range_page(found: Sequence[Range], model: Path, source: str) -> str:
    """Write the largest values of each layer. found: in the order of computation; source: of the inputs"""
    worst = in_order(list(found))
    over = sum(not one.worst <= FLOAT16 for one in worst)
    title = f"{counted(over, 'layer')} overflow float16" if over else "nothing overflows float16"
    caption = "The largest value of each call, in the order of computation."
    values = [Dot(_called(one), one.worst, not one.worst <= FLOAT16) for one in found]
    plot = dots(_thinned(values), caption, f"{len(found)} calls", (FLOAT16, "65504"))
    held = [
        Bar(
            (one.name, str(one.step or ""), "" if one.product is None else f"{one.product:.4g}"),
            one.worst,
            f"{one.worst:.4g}, {one.worst / FLOAT16:.2%}",
            not one.worst <= FLOAT16,
        )
        for one in worst[:_ROWS]
    ]
    table = bars(("layer", "step", "before the bias", "largest, the line is 65504", ""), held, FLOAT16)
    line = element("p", f"{model}, {source}", class_="dim")
    return page(title, not over, [line], [_section("In order", plot), _section("The largest first", table)])


def quality_page(rows: Sequence[Quality], model: Path) -> str:
    """Write what each type costs: the error of the output, the drift over steps, the costliest layers."""
    named = {_variant(row): row for row in rows}
    best = min(rows, key=lambda row: row.error)
    title = f"the least error of the output is {best.error:.3g}, of {_variant(best)}"
    held = [
        Bar((name, f"{row.bits:.3g}", f"{decibels(row.error):.1f}"), row.error, f"{row.error:.3g}")
        for name, row in named.items()
    ]
    parts = [_section("Error of the output", bars(("type", "bits", "dB", "relative L2 error", ""), held))]
    drift = {name: row.drift for name, row in named.items() if row.drift}
    if drift:
        caption = "Relative L2 distance of the latent from the exact weights' after each step of one sampling run."
        parts.append(_section("Drift over steps", curves(drift, caption, "step")))
    for name, row in named.items():
        order = sorted(row.layers.items(), key=lambda item: _natural(item[0]))
        if order:
            worst = max(row.layers.values())
            shown = _thinned([Dot(layer, error, error == worst) for layer, error in order])
            caption = f"Relative L2 error of each layer's product on the model's own inputs. Red: {_worst(row)}."
            parts.append(_section(f"Layers: {name}", dots(shown, caption, f"{len(order)} layers, by name")))
    head = [element("p", str(model), class_="dim"), *(element("p", remark) for remark in remarks(rows))]
    return page(title, True, head, parts)


def _variant(row: Quality) -> str:
    words = [row.type, "with matrix" if row.importance else "", f"adapter {row.adapter}" if row.adapter else ""]
    return ", ".join(word for word in words if word)


def _worst(row: Quality) -> str:
    return next(iter(row.layers))


def _natural(name: str) -> list[tuple[int, str]]:
    """Sort numbers in a name by their value."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in name.split(".")]


def _number(error: float | None) -> str:
    return f"{error:.3g}" if error else ""


def _called(one: Range) -> str:
    return f"{one.name}, step {one.step}" if one.step else one.name


def _thinned(rows: list[Dot]) -> list[Dot]:
    """Keep every red dot, and so many of the others that the page stays small."""
    every = max(1, len(rows) // _DOTS)
    return [row for i, row in enumerate(rows) if row.over or i % every == 0]


def _finding(finding) -> Element:
    article = element("article", element("h3", finding.text))
    if len(finding.tensors) > 1:
        article.append(listed(list(finding.tensors[:12]), class_="inline"))
    return article


def _section(title: str, *children: Element) -> Element:
    return element("section", element("h2", title), *children)
