"""Draw how the share of conforming cases went over an engine's versions and days."""

from collections.abc import Sequence
from xml.etree.ElementTree import Element

from refsd.reports.html.elements import element
from refsd.scoreboard.cells import bad, judged, total
from refsd.scoreboard.runs import Run

_WIDE, _HIGH, _LEFT, _PAD = 320, 90, 34, 10


def share(run: Run) -> float:
    """Return the share of judged cases that conform, 0..1."""
    counts = total(run.counts.values())
    ran = judged(counts)
    return (ran - bad(counts)) / ran if ran else 0.0


def trend(runs: Sequence[Run]) -> Element:
    """Draw one engine's runs on one device, the oldest first, equally spaced; failing ones are open circles."""
    shares = [share(run) for run in runs]
    # From the next lower tenth to 100 %.
    low = min(int(min(shares) * 10) / 10, 0.9)

    def x(i: int) -> float:
        return _LEFT + _PAD + i * (_WIDE - _LEFT - 2 * _PAD) / max(len(runs) - 1, 1)

    def y(value: float) -> float:
        return _PAD + (1 - value) / (1 - low) * (_HIGH - 2 * _PAD)

    label = f"{runs[0].engine}: {shares[0]:.1%} to {shares[-1]:.1%} conform in {len(runs)} runs"
    svg = element(
        "svg",
        viewBox=f"0 0 {_WIDE} {_HIGH}",
        width=_WIDE,
        height=_HIGH,
        role="img",
        aria_label=label,
        class_="trend",
    )
    for value in (low, 1.0):
        svg.append(element("line", class_="axis", x1=_LEFT, x2=_WIDE, y1=f"{y(value):.1f}", y2=f"{y(value):.1f}"))
        svg.append(element("text", f"{value:.0%}", x=_LEFT - 4, y=f"{y(value) + 4:.1f}", text_anchor="end"))
    points = [(x(i), y(value)) for i, value in enumerate(shares)]
    svg.append(element("polyline", points=" ".join(f"{a:.1f},{b:.1f}" for a, b in points), class_="line"))
    for run, value, (a, b) in zip(runs, shares, points, strict=True):
        dot = element("circle", cx=f"{a:.1f}", cy=f"{b:.1f}", r=4, class_="whole" if value == 1 else "open")
        dot.append(element("title", f"{run.date or 'no date'}, {run.version}: {value:.1%} conform"))
        svg.append(dot)
    return svg
