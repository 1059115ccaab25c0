"""Draw margins: a bar for one answer, a histogram for all answers of an engine."""

import math
from collections import Counter
from collections.abc import Sequence
from xml.etree.ElementTree import Element

from refsd.golden import verdict
from refsd.golden.report import Result
from refsd.reports.cells import margin_text
from refsd.reports.html.elements import element

# Range of the axis, in powers of ten; margins outside are drawn at its ends.
_LOW, _HIGH = -3, 6
_PER_DECADE = 4
_BAR = 9  # width of a column in the SVG's units
_TALL = 80


def bar(margin: float) -> Element:
    """Draw a margin on a logarithmic scale, with a mark at 1, above which an answer fails."""
    width, one = 180.0, _at(1.0) * 180
    svg = _svg(width, 12, f"margin {margin_text(margin)}; 1 is allowed")
    svg.append(element("rect", class_="track", x=0, y=3, width=width, height=6, rx=3))
    fill = max(_at(margin) * width, 2)
    svg.append(
        element("rect", class_="over" if margin > 1 else "within", x=0, y=3, width=f"{fill:.1f}", height=6, rx=3)
    )
    svg.append(element("line", class_="one", x1=f"{one:.1f}", x2=f"{one:.1f}", y1=0, y2=12))
    return svg


def histogram(results: Sequence[Result]) -> Element:
    """Draw a histogram of the answers' margins; failing answers are red."""
    bins = (_HIGH - _LOW) * _PER_DECADE
    counts: Counter[tuple[int, bool]] = Counter()
    ran = [r for r in results if r.status != verdict.REFUSED]
    for r in ran:
        counts[min(int(_at(r.margin) * bins), bins - 1), r.conforms] += 1
    most = max((counts[i, True] + counts[i, False] for i in range(bins)), default=1) or 1
    width = bins * _BAR
    bad = sum(not r.conforms for r in ran)
    svg = _svg(
        width, _TALL + 18, f"{len(ran)} margins on a logarithmic scale, {bad} of answers that do not conform"
    )
    for i in range(bins):
        y = float(_TALL)
        for conforms, name in ((True, "within"), (False, "over")):
            n = counts[i, conforms]
            if n:
                tall = max(n / most * (_TALL - 4), 2)
                y -= tall
                column = element(
                    "rect", class_=name, x=i * _BAR + 1, y=f"{y:.1f}", width=_BAR - 1, height=f"{tall:.1f}"
                )
                column.append(element("title", f"{n} with a margin near {margin_text(_of((i + 0.5) / bins))}"))
                svg.append(column)
    one = _at(1.0) * width
    svg.append(element("line", class_="one", x1=f"{one:.1f}", x2=f"{one:.1f}", y1=0, y2=_TALL))
    for power in range(_LOW, _HIGH + 1, 3):
        anchor = {_LOW: "start", _HIGH: "end"}.get(power, "middle")
        x = _at(10.0**power) * width
        label = "1" if power == 0 else f"1e{power}"
        svg.append(element("text", label, x=f"{x:.1f}", y=_TALL + 14, text_anchor=anchor))
    return svg


def _svg(width: float, height: float, label: str) -> Element:
    return element(
        "svg",
        viewBox=f"0 0 {width:g} {height:g}",
        width=f"{width:g}",
        height=f"{height:g}",
        role="img",
        aria_label=label,
    )


def _at(margin: float) -> float:
    """Return a margin's position on the axis, 0..1."""
    power = math.log10(margin) if margin > 0 else _LOW
    return min(max((power - _LOW) / (_HIGH - _LOW), 0.0), 1.0)


def _of(at: float) -> float:
    return 10.0 ** (_LOW + at * (_HIGH - _LOW))
