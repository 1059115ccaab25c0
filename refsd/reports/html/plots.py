"""Draw numbers as SVG: bars in a table, dots in order, curves; on logarithmic scales, with labels for the blind."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from xml.etree.ElementTree import Element

from refsd.reports.html.elements import element

_WIDE, _TALL = 720, 240
_LEFT, _RIGHT, _BOTTOM, _TOP = 56, 12, 34, 14
_BAR = 220
_TICKS = 6


class Bar(NamedTuple):
    """A row of a table of bars.

    cells: the row's texts before the bar
    value: length of the bar, on the table's logarithmic scale
    text:  the number after the bar
    over:  True to draw it in the colour of an error
    """

    cells: tuple[str, ...]
    value: float
    text: str
    over: bool = False


class Dot(NamedTuple):
    name: str
    value: float
    over: bool = False


def bars(headings: Sequence[str], rows: Sequence[Bar], mark: float | None = None) -> Element:
    """Draw a table whose last two columns are a bar and its number. mark: value of a dashed line across the bars"""
    scale = _Scale([row.value for row in rows] + ([mark] if mark is not None else []), _BAR)
    head = element("tr", *(element("th", text, scope="col") for text in headings))
    body = element("tbody")
    for row in rows:
        svg = element("svg", viewBox=f"0 0 {_BAR} 12", width=_BAR, height=12, role="img", aria_label=row.text)
        svg.append(element("rect", class_="track", x=0, y=3, width=_BAR, height=6, rx=3))
        long = f"{max(scale.at(row.value), 2):.1f}"
        svg.append(element("rect", class_="over" if row.over else "within", x=0, y=3, width=long, height=6, rx=3))
        if mark is not None:
            at = f"{scale.at(mark):.1f}"
            svg.append(element("line", class_="one", x1=at, x2=at, y1=0, y2=12))
        name, *cells = row.cells
        line = element("tr", element("th", name, scope="row"), *(element("td", cell) for cell in cells))
        line.append(element("td", svg))
        line.append(element("td", row.text))
        body.append(line)
    table = element("table", element("thead", head), body, class_="bars")
    return element("div", table, class_="wide", tabindex=0, role="region", aria_label=headings[0])


def dots(rows: Sequence[Dot], caption: str, x: str, mark: tuple[float, str] | None = None) -> Element:
    """Draw a dot for each value, in order. mark: a value and its label, a dashed line across the plot"""
    scale = _Scale([row.value for row in rows] + ([mark[0]] if mark else []), _TALL - _TOP - _BOTTOM)
    svg = _frame(caption, scale, x)
    step = (_WIDE - _LEFT - _RIGHT) / max(len(rows), 1)
    for i, row in enumerate(rows):
        dot = element(
            "circle",
            class_="over" if row.over else "within",
            cx=f"{_LEFT + (i + 0.5) * step:.1f}",
            cy=f"{_y(scale, row.value):.1f}",
            r=4 if row.over else 2.5,
        )
        dot.append(element("title", f"{row.name}: {row.value:.4g}"))
        svg.append(dot)
    if mark:
        at = f"{_y(scale, mark[0]):.1f}"
        svg.append(element("line", class_="one", x1=_LEFT, x2=_WIDE - _RIGHT, y1=at, y2=at))
        svg.append(element("text", mark[1], x=_WIDE - _RIGHT, y=float(at) - 4, text_anchor="end"))
    return element("figure", svg, element("figcaption", caption))


def curves(series: Mapping[str, Sequence[float]], caption: str, x: str) -> Element:
    """Draw a curve for each name, of values at 1, 2, 3, ..."""
    scale = _Scale([value for values in series.values() for value in values], _TALL - _TOP - _BOTTOM)
    svg = _frame(caption, scale, x)
    longest = max(map(len, series.values()))
    step = (_WIDE - _LEFT - _RIGHT) / max(longest - 1, 1)
    for i in range(longest):
        at = f"{_LEFT + i * step:.1f}"
        svg.append(element("text", str(i + 1), x=at, y=_TALL - _BOTTOM + 14, text_anchor="middle"))
    key = element("ul", class_="key")
    for n, (name, values) in enumerate(series.items()):
        points = " ".join(f"{_LEFT + i * step:.1f},{_y(scale, v):.1f}" for i, v in enumerate(values))
        line = element("polyline", points=points, class_=f"curve c{n % 8}")
        line.append(element("title", name))
        svg.append(line)
        sample = element("svg", viewBox="0 0 28 8", width=28, height=8, aria_hidden="true")
        sample.append(element("line", x1=0, x2=28, y1=4, y2=4, class_=f"curve c{n % 8}"))
        key.append(element("li", sample, f" {name}"))
    return element("figure", svg, key, element("figcaption", caption))


class _Scale:
    """A logarithmic scale over the positive finite values, from whole powers of ten (of two decades at least).

    Zero and what is smaller lie at its beginning, what is not finite at its end.
    """

    def __init__(self, values: Sequence[float], long: float):
        good = [v for v in values if v > 0 and math.isfinite(v)] or [1.0]
        self.low, self.high = math.floor(math.log10(min(good))), math.ceil(math.log10(max(good)))
        self.high = max(self.high, self.low + 1)
        self.long = long

    def at(self, value: float) -> float:
        if value <= 0 or math.isnan(value):
            return 0.0 if value <= 0 else self.long
        power = math.log10(value) if math.isfinite(value) else self.high
        return self.long * min(max((power - self.low) / (self.high - self.low), 0.0), 1.0)

    def ticks(self) -> range:
        return range(self.low, self.high + 1, max(1, -(-(self.high - self.low) // _TICKS)))


def _y(scale: _Scale, value: float) -> float:
    return _TALL - _BOTTOM - scale.at(value)


def _frame(label: str, scale: _Scale, x: str) -> Element:
    svg = element("svg", viewBox=f"0 0 {_WIDE} {_TALL}", class_="plot", role="img", aria_label=label)
    for power in scale.ticks():
        at = f"{_y(scale, 10.0**power):.1f}"
        svg.append(element("line", class_="grid", x1=_LEFT, x2=_WIDE - _RIGHT, y1=at, y2=at))
        shown = f"{10.0**power:g}"
        svg.append(element("text", shown, x=_LEFT - 6, y=float(at) + 4, text_anchor="end"))
    svg.append(element("text", x, x=(_LEFT + _WIDE) / 2, y=_TALL - 4, text_anchor="middle"))
    return svg
