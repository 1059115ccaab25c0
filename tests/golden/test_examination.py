"""Taps whose names the reference has not: a layer that is called once more, and a name that is wrong."""

import numpy as np
import pytest

from refsd.cases import CASES
from refsd.golden.examination import examine
from refsd.golden.judge import Answer, Standard, Trace
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
