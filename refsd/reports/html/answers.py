"""Show the failing answers, each with its reason, margin, place, causes, map of taps and pictures."""

from collections.abc import Mapping, Sequence
from urllib.parse import quote
from xml.etree.ElementTree import Element, tostring

from refsd.golden import verdict
from refsd.golden.repeated_requests import OF_REQUESTS
from refsd.golden.report import Pair, Report, Result
from refsd.numerics.printable import printable
from refsd.numerics.profiles import FLOAT32, PROFILES
from refsd.reports.cells import margin_text
from refsd.reports.groups import Group
from refsd.reports.html.elements import Child, add, element, listed
from refsd.reports.html.margins import bar
from refsd.reports.html.model_map import model_map
from refsd.reports.pictures import Picture

# Limits in characters, which keep the page below 2 MB.
_TEXT = 600_000
_PICTURES = 700_000
_CRITERIA = 6
_LONGEST = 900


class Answers:
    """The page's section of failing answers.

    ids:     (engine, case) -> the answer's anchor in the page
    section: the HTML of all answers
    notes:   lines that count what was left out to keep the page small
    """

    def __init__(self, report: Report, groups: Sequence[Group], pictures: Mapping[Pair, Sequence[Picture]]):
        self.ids: dict[Pair, str] = {}
        self.notes: list[str] = []
        self.section = element("section", element("h2", "What does not agree"), id="answers")
        new = {*report.baseline.new} if report.baseline is not None else set()
        # The first answer of each group always gets a place.
        ordered = [r for group in groups for r in group.results[:1]] + [r for g in groups for r in g.results[1:]]
        text, drawn = _TEXT, _PICTURES
        built: dict[Pair, Element] = {}
        for r in ordered:
            shown = list(pictures.get((r.engine, r.case), ()))
            size = sum(len(picture.url) for picture in shown)
            shown, drawn = (shown, drawn - size) if size <= drawn else ([], drawn)
            one = _answer(r, f"a{len(built)}", (r.engine, r.case) in new, shown)
            text -= len(tostring(one, method="html")) - sum(len(picture.url) for picture in shown)
            if text < 0:
                self.notes.append(
                    f"{len(ordered) - len(built)} answers have no room in this page; see conform.json"
                )
                break
            built[r.engine, r.case] = one
            self.ids[r.engine, r.case] = f"a{len(built) - 1}"
        for pair in ((r.engine, r.case) for group in groups for r in group.results):
            if pair in built:
                self.section.append(built[pair])
        without = sum(pair in built and not built[pair].findall(".//img") for pair in pictures)
        if without:
            self.notes.append(f"the pictures of {without} answers have no room in this page")


def _answer(r: Result, name: str, new: bool, pictures: Sequence[Picture]) -> Element:
    badge = element("span", r.status, class_=f"badge {r.status}")
    marks = [element("span", "new", class_="badge new")] if new else []
    title = element("span", f"{r.engine} \u00b7 {r.case}", class_="name")
    summary = element(
        "summary", badge, *marks, title, " ", element("span", f"margin {margin_text(r.margin)}", class_="dim")
    )
    answer = element("details", summary, id=name, class_="answer")
    answer.append(element("p", r.reason[:_LONGEST]))
    if r.log:
        answer.append(element("pre", "\n".join(r.log)))
    answer.append(_facts(r))
    if r.way:
        answer.append(model_map(r.way))
    for picture in pictures:
        image = element("img", src=picture.url, alt=picture.caption, class_="map")
        image.set("width", str(picture.width * _scale(picture)))
        image.set("height", str(picture.height * _scale(picture)))
        answer.append(element("figure", image, element("figcaption", picture.caption), class_="picture"))
    return answer


def _facts(r: Result) -> Element:
    facts = element("dl")

    def fact(term: str, *values: Child) -> None:
        add(facts, element("dt", term))
        add(facts, element("dd", *values))

    if r.place:
        fact("first wrong place", element("code", r.place))
    if r.causes:
        fact(
            "cause" if r.causes[0] in OF_REQUESTS else "the reference agrees if", listed(list(r.causes[:_CRITERIA]))
        )
    if r.deviations:
        fact("deviations", ", ".join(r.deviations))
    if r.nearest is not None:
        fact("nearest known bug", f"{r.nearest.cause} explains {r.nearest.percent} % of the error")
    if r.looks:
        fact("looks like", listed(list(r.looks[:_CRITERIA])))
    fact("margin", bar(r.margin), f" {margin_text(r.margin)} ({r.criterion})" if r.criterion else "")
    wrong = [
        m for m in r.outputs if m.engine is not None and m.found == m.shape and not verdict.judge_output(m).passed
    ]
    if wrong:
        criteria = (f"{c.name} {margin_text(c.margin)}" for c in verdict.criteria(wrong[0]))
        fact(f"margins of {wrong[0].output}", ", ".join(criteria))
    if r.numerics:
        fact("declared numerics", r.numerics)
    if r.kept:
        fact("kept in", element("a", r.kept, href=quote(printable(r.kept))))
        fact(
            "judge it again", element("code", f"refsd compare {r.kept}/found.safetensors '{r.case}'{_numerics(r)}")
        )
    return facts


def _numerics(r: Result) -> str:
    return f" --numerics {r.numerics}" if r.numerics in PROFILES and r.numerics != FLOAT32.name else ""


def _scale(picture: Picture) -> int:
    """Return an integer zoom factor that makes the picture about 200 pixels wide and keeps pixels sharp."""
    return max(200 // max(picture.width, picture.height, 1), 2)
