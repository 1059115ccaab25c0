"""No bound and no known bug moves unseen: a looser bound passes what it failed, and no other test says so."""

import json

import pytest
from record_operations import ASKED, RECORDED, measured

pytestmark = pytest.mark.jitted

KEPT = json.loads(RECORDED.read_text())


def test_every_case_is_recorded():
    assert sorted(ASKED) == sorted(KEPT)


@pytest.mark.parametrize("name", ASKED)
def test_a_case_is_as_recorded(name):
    found, kept = measured(ASKED[name]), KEPT[name]
    assert found["shape"] == kept["shape"]
    for bounds, expected in zip(found["bounds"], kept["bounds"], strict=True):
        assert bounds == pytest.approx(expected, rel=2e-3)
    assert found["bugs"].keys() == kept["bugs"].keys()
    # The order of sums, which is the BLAS's, decides what is as small as rounding: the most of all elements.
    (_, spread), *_ = kept["bounds"]
    rounding = 4 * spread
    for bug, off in found["bugs"].items():
        assert off == (pytest.approx(kept["bugs"][bug], rel=2e-2, abs=rounding) if off else kept["bugs"][bug]), bug
