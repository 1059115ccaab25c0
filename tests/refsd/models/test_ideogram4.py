"""Ideogram 4's transformer: what diffusers answered for it, and what must hold whatever the weights."""

from pathlib import Path

import numpy as np
import pytest
import tiny_ideogram4 as tiny

from refsd.models.ideogram4 import PICTURE_START, axes, ideogram4, positions
from refsd.module import Module
from refsd.numerics.tensor import stored

pytestmark = pytest.mark.jitted
RECORDED = Path(__file__).parents[2] / "fixtures" / "ideogram4.npz"


@pytest.fixture(scope="module")
def run():
    weights = {name: stored(w.values().astype(np.float64)) for name, w in tiny.weights().items()}

    def run(**changed):
        return ideogram4(Module(weights), **{**tiny.inputs(), **changed}, sections=tiny.SECTIONS)

    return run


def test_as_diffusers(run):
    """Recorded by tests/fixtures/record_ideogram4.py."""
    np.testing.assert_allclose(run(), np.load(RECORDED)["out"], rtol=0, atol=1e-12)


def test_positions():
    there = np.array([[1, 1], [0, 1]])
    picture = [[PICTURE_START, PICTURE_START + r, PICTURE_START + c] for r in range(2) for c in range(3)]
    words = [[[0, 0, 0], [1, 1, 1]], [[0, 0, 0], [0, 0, 0]]]
    assert positions(there, 2, 3).tolist() == [of_item + picture for of_item in words]


def test_the_axes_of_the_released_model():
    """64 of 128 frequencies take time, row and column in turn, the others the time alone."""
    axis = axes(256, (24, 20, 20))
    assert [np.sum(axis == i) for i in range(3)] == [88, 20, 20]
    assert axis[:60].tolist() == 20 * [0, 1, 2] and not axis[60:].any()


def test_padding_may_stand_anywhere_and_is_not_read(run):
    given = tiny.inputs()
    there = given["context_mask"]
    other = np.where(there[..., None] != 0, given["context"], 7.0)
    np.testing.assert_allclose(run(context=other), run(), rtol=1e-9, atol=1e-12)
    # the words of each item behind its padding, as diffusers has them
    behind = [np.roll(item, int((seen == 0).sum()), axis=0) for item, seen in zip(other, there, strict=True)]
    moved = run(context=np.stack(behind), context_mask=there[:, ::-1])
    np.testing.assert_allclose(moved, run(), rtol=1e-9, atol=1e-12)
    assert np.abs(run(context_mask=None)[1] - run()[1]).max() > 1e-3
