"""The rule for taps, on arrays that a reader can check."""

import numpy as np
import pytest

from refsd.golden.taps import measure_taps
from refsd.golden.verdict import criteria, judge, judge_output
from refsd.numerics.profiles import FLOAT32, FLOAT64, TORCH_BF16

_RNG = np.random.default_rng(11)
_TRUTH = {name: _RNG.standard_normal((2, 8, 6, 10)) for name in ("b.first", "a.second", "c.third")}
_NOISE = {name: _RNG.standard_normal(y.shape) for name, y in _TRUTH.items()}


def _honest(size=1e-6):
    return {name: y + size * _NOISE[name] for name, y in _TRUTH.items()}


def _engine(size=1e-6, **wrong):
    return {name: y + wrong.get(name[2:], size) * _NOISE[name][::-1] for name, y in _TRUTH.items()}


def _measured(found, honest=None, numerics=FLOAT32):
    return measure_taps(found, _TRUTH, honest or _honest(), numerics)


def test_taps_are_measured_in_the_order_of_the_truth_and_only_those_that_are_there():
    assert [m.output for m in _measured(_engine())] == list(_TRUTH)
    some = {name: y for name, y in _engine().items() if name != "a.second"}
    assert [m.output for m in _measured(some)] == ["b.first", "c.third"]


@pytest.mark.parametrize(("size", "passed"), [(1e-6, True), (3e-6, True), (5e-6, False)])
def test_four_times_the_honest_runs_error(size, passed):
    (m, *_) = _measured(_engine(first=size))
    rms = next(c for c in criteria(m) if c.name == "rms")
    assert rms.margin == pytest.approx(size / 4e-6, rel=1e-6)
    assert judge_output(m).passed is passed


def test_the_first_wrong_tap_is_named_and_not_the_worst():
    assert judge(_measured(_engine(second=1e-5, third=1e-2))).reason.startswith("a.second: ")


@pytest.mark.parametrize(
    ("numerics", "rounding"), [(FLOAT32, 2.0**-24), (TORCH_BF16, 2.0**-24), (FLOAT64, 2.0**-50)]
)
def test_an_exact_honest_tap_leaves_room_for_one_rounding(numerics, rounding):
    """As an embedding's: the honest run copies numbers, the engine may multiply them by 1."""
    size = rounding * np.sqrt(np.mean(_TRUTH["b.first"] ** 2))
    for times, passed in ((2, True), (8, False)):
        found = {"b.first": _TRUTH["b.first"] + times * size * np.sign(_NOISE["b.first"])}
        (m,) = _measured(found, _TRUTH, numerics)
        rms = next(c for c in criteria(m) if c.name == "rms")
        assert rms.margin == pytest.approx(times / 4, rel=0.01)
        assert judge_output(m).passed is passed


def test_one_channel_and_one_element_are_wrong_taps_too():
    for place in ((slice(None), 3), (1, 2, 3, 4)):
        found = _engine()
        found["a.second"][place] += 1e-4
        assert judge(_measured(found)).reason.startswith("a.second: ")


def test_shapes_and_numbers_that_are_none():
    found = _engine(third=1.0)
    found["a.second"] = found["a.second"][:1]
    assert "has shape [1, 8, 6, 10]" in judge(_measured(found)).reason
    found = _engine(third=1.0)
    found["a.second"][0, 0, 0, 0] = np.nan
    assert judge(_measured(found)).reason.startswith("a.second: 1 element not finite")
