"""Write a report as one HTML page that needs no network, no other file and no mouse."""

from collections.abc import Mapping, Sequence
from xml.etree.ElementTree import Element

from refsd.golden.report import Pair, Report
from refsd.golden.wording import counted
from refsd.reports.cells import SCALE, outcomes, refusals, verdict_line
from refsd.reports.groups import ERROR, WAIVED, Group, groups
from refsd.reports.html.answers import Answers
from refsd.reports.html.elements import Child, element, listed
from refsd.reports.html.frame import page
from refsd.reports.html.margins import histogram
from refsd.reports.html.matrix import matrix
from refsd.reports.pictures import Picture

_GROUPS = 100
_CASES = 6
_LINES = 100
_LONGEST = 600


def html(report: Report, pictures: Mapping[Pair, Sequence[Picture]]) -> str:
    """Format the page. pictures: (engine, case) -> pictures of the answer"""
    found = groups(report)
    answers = Answers(report, found, pictures)
    line = verdict_line(report)
    ran = report.engines and not report.partial
    parts = [_causes(report, found, answers), *([answers.section] if found else []), _margins(report)]
    parts += [_cases(report, answers), _engines(report, answers.notes)]
    return page(line, bool(report.conforms and ran), [_navigation(bool(found))], parts, "page.js")


def _navigation(found: bool) -> Element:
    parts = {"causes": "Causes", "answers": "What does not agree", "margins": "Margins", "cases": "Every case"}
    parts["engines"] = "Engines"
    links: list[Child] = [
        element("a", text, href=f"#{name}")
        for name, text in parts.items()
        if found or name not in ("causes", "answers")
    ]
    keys = (("n", "next"), ("p", "previous answer that does not agree"), ("/", "filter"))
    hint = element("p", class_="dim keys")
    for key, text in keys:
        hint.append(element("kbd", key))
        hint[-1].tail = f" {text}  "
    return element("nav", listed(links), hint, aria_label="Parts of the report")


def _causes(report: Report, found: Sequence[Group], answers: Answers) -> Element:
    section = element("section", id="causes")
    if found:
        section.append(element("h2", "Causes"))
    for group in found[:_GROUPS]:
        article = element("article", element("h3", group.heading(report.baseline)), class_=group.kind)
        links: list[Child] = []
        for r in group.results[:_CASES]:
            anchor = answers.ids.get((r.engine, r.case))
            links.append(element("a", r.case, href=f"#{anchor}") if anchor else r.case)
        if len(group.results) > _CASES:
            links.append(f"and {len(group.results) - _CASES} more")
        article.append(listed(links, class_="inline"))
        if group.kind not in (ERROR, WAIVED):
            article.append(element("p", group.results[0].reason[:_LONGEST], class_="dim"))
        section.append(article)
    if len(found) > _GROUPS:
        section.append(element("p", f"and {len(found) - _GROUPS} more groups, in conform.json"))
    for title, lines in (
        ("Shared by the failing cases", report.shared),
        ("Fewer cases than expected", report.shortage),
        ("Fixed since the baseline", _pairs(report.baseline.fixed if report.baseline else [])),
        ("Failed in the baseline, not judged now", _pairs(report.baseline.unseen if report.baseline else [])),
    ):
        if lines:
            section.append(element("h3", title))
            section.append(_lines(lines))
    return section


def _margins(report: Report) -> Element:
    section = element("section", element("h2", "Margins"), id="margins")
    section.append(
        element("p", "How many answers have which margin: value / allowed. Above 1 an answer fails.", class_="dim")
    )
    for name in report.engines:
        caption = f"{name}: {outcomes(report.of(name)) or 'no case'}"
        section.append(
            element("figure", element("figcaption", caption), histogram(report.of(name)), class_="histogram")
        )
    return section


def _cases(report: Report, answers: Answers) -> Element:
    section = element("section", element("h2", "Every case"), id="cases")
    section.append(element("p", f"The {SCALE}. A dash: the engine does not take the case.", class_="dim"))
    text = element("input", id="filter", type="search", placeholder="conv2d", autocomplete="off")
    only = element("input", id="only", type="checkbox")
    labels = (element("label", "Cases with ", text), element("label", only, " only what does not conform"))
    section.append(element("p", *labels, class_="controls"))
    wide = element(
        "div", matrix(report, answers.ids), class_="wide", tabindex=0, role="region", aria_label="Every case"
    )
    section.append(wide)
    return section


def _engines(report: Report, notes: Sequence[str]) -> Element:
    section = element("section", element("h2", "Engines"), id="engines")
    for name, version in report.engines.items():
        section.append(element("h3", f"{name} {version}"))
        lines = [f"does not take {counted(n, 'case')}: {why}" for why, n in refusals(report, name)]
        section.append(_lines(lines) if lines else element("p", "takes every case", class_="dim"))
    if report.missing:
        section.append(element("h3", "Not judged"))
        section.append(_lines([f"{m.name}: {m.why}" for m in report.missing]))
    if report.notes or notes:
        section.append(element("h3", "Left out"))
        section.append(_lines([*report.notes, *notes]))
    section.append(
        element("p", f"refsd {report.refsd}; every metric is in conform.json beside this page.", class_="dim")
    )
    return section


def _lines(texts: Sequence[str]) -> Element:
    more = [f"and {len(texts) - _LINES} more"] if len(texts) > _LINES else []
    return listed([*(text[:_LONGEST] for text in texts[:_LINES]), *more])


def _pairs(pairs: Sequence[Pair]) -> list[str]:
    return [f"{engine}: {case}" for engine, case in pairs]
