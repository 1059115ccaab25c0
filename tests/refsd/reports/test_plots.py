"""Plots: lengths and heights are those of the numbers, on a logarithmic scale."""

import math

import pytest

from refsd.reports.html.plots import Bar, Dot, bars, curves, dots


def test_a_bar_is_as_long_as_the_logarithm_of_its_value():
    table = bars(("layer", "value", ""), [Bar((f"{v}",), v, f"{v}", v > 50) for v in (1.0, 10.0, 100.0)], 10.0)
    long = [float(rect.get("width")) for rect in table.iter("rect") if rect.get("class") != "track"]
    assert long == [2, 110, 220]  # 2 is the least that is seen
    assert [rect.get("class") for rect in table.iter("rect")][1::2] == ["within", "within", "over"]
    assert {line.get("x1") for line in table.iter("line")} == {"110.0"}


def test_dots_and_curves_stand_at_their_values():
    figure = dots([Dot("a", 1.0), Dot("b", 10.0), Dot("c", 100.0, True)], "caption", "x", (10.0, "limit"))
    heights = [float(circle.get("cy")) for circle in figure.iter("circle")]
    assert heights[0] - heights[1] == pytest.approx(heights[1] - heights[2], abs=0.2)
    (line,) = (line for line in figure.iter("line") if line.get("class") == "one")
    assert float(line.get("y1")) == heights[1]
    assert [title.text for title in figure.iter("title")] == ["a: 1", "b: 10", "c: 100"]

    figure = curves({"q8_0": [1.0, 10.0], "q4_0": [10.0, 100.0]}, "caption", "step")
    one, two = ([float(p.split(",")[1]) for p in line.get("points").split()] for line in figure.iter("polyline"))
    assert one[1] == two[0] and one[0] > one[1] > two[1]


def test_what_no_logarithm_has_is_drawn_at_the_ends():
    rows = [Dot("zero", 0.0), Dot("one", 1.0), Dot("nan", math.nan), Dot("inf", math.inf)]
    low, one, nan, inf = (float(circle.get("cy")) for circle in dots(rows, "c", "x").iter("circle"))
    assert low >= one > nan == inf
