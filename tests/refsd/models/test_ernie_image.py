"""Ernie-Image's transformer: what diffusers answered for it, and what must hold whatever the weights."""

from pathlib import Path

import numpy as np
import pytest
import tiny_ernie_image as tiny

from refsd.models.ernie_image import ernie_image, token_ids, turn
from refsd.module import Module
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import stored

pytestmark = pytest.mark.jitted
RECORDED = Path(__file__).parents[2] / "fixtures" / "ernie_image.npz"


@pytest.fixture(scope="module")
def run():
    weights = {name: stored(w.values().astype(np.float64)) for name, w in tiny.weights().items()}

    def run(**changed):
        return ernie_image(Module(weights), **{**tiny.inputs(), **changed}, axes_dim=tiny.AXES)

    return run


def test_as_diffusers(run):
    """Recorded by tests/fixtures/record_ernie_image.py."""
    np.testing.assert_allclose(run(), np.load(RECORDED)["out"], rtol=0, atol=1e-12)


def test_positions():
    picture = [[r, c] for r in range(2) for c in range(3)]
    words = [[0, 0, 0], [1, 0, 0]]
    want = [[[length, *place] for place in picture] + words for length in (2, 1)]
    assert token_ids((2, 1), 2, 2, 3).tolist() == want


def test_both_channels_of_a_pair_have_an_angle_of_their_own():
    x, angle = np.arange(1.0, 9).reshape(1, 1, 1, 8), np.array([[[0.1, 0.2, 0.3, 0.4]]])
    y, own = turn(Module({}), x, angle).ravel(), [0.1, 0.1, 0.2, 0.2, 0.3, 0.3, 0.4, 0.4]
    for i in range(4):
        a, b = x.ravel()[i], x.ravel()[i + 4]
        assert y[i] == pytest.approx(a * np.cos(own[i]) - b * np.sin(own[i]), rel=1e-14)
        assert y[i + 4] == pytest.approx(b * np.cos(own[i + 4]) + a * np.sin(own[i + 4]), rel=1e-14)


def test_words_after_a_prompt_s_end_are_not_read(run):
    context, lengths = tiny.inputs()["context"], tiny.inputs()["lengths"]
    other = np.where(np.arange(context.shape[1])[None, :, None] < lengths[:, None, None], context, 7.0)
    np.testing.assert_allclose(run(context=other), run(), rtol=1e-9, atol=1e-12)
    assert np.abs(run(lengths=None)[1] - run()[1]).max() > 1e-3
    np.testing.assert_allclose(run(lengths=None)[0], run()[0], rtol=1e-9, atol=1e-12)


def test_a_length_that_no_prompt_has_is_refused(run):
    with pytest.raises(BadInput, match=r"lengths \[9, 10\]: expected 2 of 1 to 9"):
        run(lengths=np.array([9, 10]))
