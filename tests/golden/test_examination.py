"""Taps whose names the reference has not: a layer that is called once more, and a name that is wrong."""

import numpy as np
import pytest

from refsd.cases import CASES
from refsd.golden.examination import Examination, examine
from refsd.golden.judge import Answer, Standard, Trace
from refsd.golden.metrics import measure
from refsd.numerics.profiles import FLOAT32


class _TwoTaps:
    """A judge whose model has the taps "a.norm" and "b"; it measures nothing."""

    def trace(self, *told) -> Trace:
        return Trace([], ["a.norm", "b"], {})

    def measure(self, standard: Standard, found: Answer) -> list:
        return []


@pytest.mark.parametrize(
    ("name", "unknown"), [("a.norm.1", 0), ("a.norm.12", 0), ("b.2", 0), ("b", 0), ("c.1", 1), ("a.norms", 1)]
)
def test_a_layer_called_once_more_is_no_unknown_tap(name, unknown):
    case = CASES["silu/f32/wide-x2x320"]
    standard = Standard(case, case.realize(), {}, {}, FLOAT32, ())
    assert examine(_TwoTaps(), standard, {}, {name: np.zeros(3)}).unknown == unknown  # type: ignore[arg-type]


def _judged(name: str, wrong: bool):
    y = np.ones((2, 3))
    return measure(name, y + wrong, y, y * (1 + 1e-7), None, -1, spread=np.full(y.shape, 1e-7))


def test_an_error_after_several_hidden_operations_lies_between_two_taps():
    names = ["a", "a.linear", "a.rope", "a.attention", "b", "b.norm", "c"]
    ops = {"a": ("linear",), "b": ("linear", "rope", "attention", "linear"), "c": ("layer_norm",)}
    taps = [_judged("a", False), _judged("b", True), _judged("c", True)]
    found = Examination(Trace(taps, names, ops), [])
    between = "the error is between a and b: linear, rope or attention"
    assert found.way == f"2 of 3 taps wrong by themselves; {between}" and found.between == between
    assert found.hidden_before("b") == ("a", ["a.linear", "a.rope", "a.attention"])
    flow = {"b": ["a.attention", "x"], "a.attention": ["a.rope"], "a.rope": ["a"], "a.linear": ["a"]}
    known = Examination(Trace(taps, names, ops, sources=flow), [])
    assert known.hidden_before("b") == ("a", ["a.rope", "a.attention"]), "only what it is computed from"
    apart = Examination(Trace(taps, names, ops, sources={"c": ["b.norm"], "b.norm": ["a"]}), [])
    assert apart.hidden_before("c") == ("a", ["b.norm"]), "b lies before it, and leads not to it"
    alone = Examination(Trace([_judged("a", True), taps[2]], names, ops), [])
    assert alone.way == "2 of 2 taps wrong by themselves" and not alone.between
    same = Examination(Trace([_judged("a", True)], names, {"a": ("linear", "add")}), [])
    assert not same.between, "all results between them are given"
