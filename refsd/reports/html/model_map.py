"""Draw a model's taps as a map, one row for each block in the order of computation; mark the first wrong tap."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from xml.etree.ElementTree import Element

from refsd.golden.report import RIGHT, UNSEEN, WRONG, Step
from refsd.golden.wording import counted
from refsd.reports.cells import margin_text
from refsd.reports.html.elements import element

_MOST = 400
_WORDS = {
    "first": "the first wrong place",
    "wrong": "wrong by itself",
    "after": "right by itself, after a wrong place: may inherit its error",
    "right": "right",
    "unseen": "not judged: the honest run is too far from the truth",
}


def model_map(way: Sequence[Step]) -> Element:
    """Draw an answer's taps. Each was judged from the engine's own earlier taps: "wrong" means it adds an error."""
    wrong = [step.name for step in way if step.state == WRONG]
    shown = list(_shown(way, wrong[0] if wrong else ""))
    figure = element("figure", class_="map")
    judged = counted(sum(step.state != UNSEEN for step in way), "tap")
    first = f"First wrong: {wrong[0]}. " if wrong else ""
    caption = f"{first}{len(wrong)} of {judged} wrong by itself; in the order of computation."
    figure.append(element("figcaption", caption))
    rows = element("ol")
    for block, steps in groupby(shown, key=lambda item: _block(item[0].name)):
        row = element("div", class_="taps")
        for step, state in steps:
            name = step.name.removeprefix(block).lstrip(".") or step.name
            label = f"{step.name}: {_WORDS[state]}, margin {margin_text(step.margin)}"
            lit = name if state in ("first", "wrong") else ""
            row.append(element("span", lit, class_=f"tap {state}", title=label, role="img", aria_label=label))
        rows.append(element("li", element("span", block or "outside the blocks", class_="block"), row))
    figure.append(rows)
    if len(way) > len(shown):
        figure.append(element("p", f"{len(way) - len(shown)} taps are left out; conform.json has them."))
    states = dict.fromkeys(state for _, state in shown)
    keys = (
        element("li", element("span", class_=f"tap {state}"), f" {_WORDS[state]}")
        for state in _WORDS
        if state in states
    )
    figure.append(element("ul", *keys, class_="key"))
    return figure


def _shown(way: Sequence[Step], first: str) -> Iterator[tuple[Step, str]]:
    """Yield each tap with its state for display; of many taps, only those around the first wrong one."""
    at = next((i for i, step in enumerate(way) if step.name == first), 0)
    start = max(min(at - _MOST // 2, len(way) - _MOST), 0)
    for i, step in enumerate(way[start : start + _MOST], start):
        if step.state == RIGHT:
            yield step, "after" if first and i > at else "right"
        else:
            yield step, "first" if step.name == first else step.state


def _block(name: str) -> str:
    """Return the block of a tap: its name up to the last number, "layers.1" for "layers.1.norm.x".

    A name without a number loses its last part.
    """
    parts = name.split(".")
    numbered = [i for i, part in enumerate(parts) if part.isdigit()]
    return ".".join(parts[: numbered[-1] + 1]) if numbered else ".".join(parts[:-1])
