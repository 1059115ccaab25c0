"""Qwen-Image 2.1's transformer: what diffusers answered for it, and what must hold whatever the weights."""

from pathlib import Path

import numpy as np
import pytest
import tiny_qwen_image21 as tiny

from refsd.models.qwen_image21 import qwen_image21, sequence, token_ids
from refsd.models.qwen_image21.network import qwen_image21_keymap
from refsd.module import Module, Taps
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import stored

pytestmark = pytest.mark.jitted
RECORDED = Path(__file__).parents[2] / "fixtures" / "qwen_image21.npz"


@pytest.fixture(scope="module")
def weights():
    return {name: stored(w.values().astype(np.float64)) for name, w in tiny.weights().items()}


@pytest.fixture(scope="module")
def run(weights):
    def run(taps=None, **changed):
        return qwen_image21(Module(weights, taps=taps), **{**tiny.inputs(), **changed}, axes_dim=tiny.AXES)

    return run


def test_as_diffusers(run):
    """Recorded by tests/fixtures/record_qwen_image21.py."""
    np.testing.assert_allclose(run(), np.load(RECORDED)["out"], rtol=0, atol=1e-12)


def test_positions():
    """Of three rows the middle one is not at 0: the larger half stands before it."""
    want = [[0, 0, 0], [1, 1, 1]] + [[2, r, c] for r in (-2, -1, 0) for c in (-1, 0)]
    assert token_ids(sequence(2, (), [(3, 2)])).tolist() == want


def test_positions_with_a_reference():
    """Five words, of which two stand for a reference of 2 x 4: the words after it count on from its larger side."""
    reference = [[2, r, c] for r in (-1, 0) for c in (-2, -1, 0, 1)]
    want = [[0] * 3, [1] * 3, *reference, [6] * 3, *([7, r, c] for r in (-1, 0) for c in (-1, 0))]
    assert token_ids(sequence(5, (2,), [(2, 4), (2, 2)])).tolist() == want


@pytest.mark.parametrize(
    ("places", "match"),
    [
        ((), "1 references and 0 places: give the first word of each"),
        ((1, 4), "1 references and 2 places"),
        ((4,), "a reference of 4 x 6 stands for 6 words from word 4; there are 9"),
    ],
)
def test_references_that_fit_no_place_are_refused(run, places, match):
    with pytest.raises(BadInput, match=match):
        run(reference=[tiny.inputs()["x"]], places=places)
    with pytest.raises(BadInput, match="2 words from word 3; there are 9, and the words before 4 are taken"):
        run(reference=[tiny.inputs()["x"][..., :2]] * 2, places=(2, 3))


def test_words_are_independent_of_picture_and_time(run):
    """So that their keys and values can be kept for all steps."""
    J, first, other = max(tiny.LENGTHS), Taps(), Taps()
    y = run(first)
    changed = run(other, x=2 * tiny.inputs()["x"], timesteps=np.array([0.5, 0.125]))
    assert np.abs(changed - y).max() > 1e-3
    for i in range(tiny.SIZE.layers):
        words = [taps[f"transformer_blocks.{i}"][:, :J] for taps in (first, other)]
        np.testing.assert_array_equal(*words)


def test_a_word_sees_none_after_it(run):
    context, first, other = tiny.inputs()["context"], Taps(), Taps()
    changed = context.copy()
    changed[:, 4] *= -1
    run(first)
    run(other, context=changed)
    one, two = (taps["transformer_blocks.1"] for taps in (first, other))
    np.testing.assert_array_equal(one[:, :4], two[:, :4])
    assert np.abs(one - two)[:, 4:].max(axis=(0, 2)).min() > 1e-6


def test_masked_words_are_not_read(run):
    given, y = tiny.inputs(), run()
    other = np.where(given["context_mask"][..., None] != 0, given["context"], 7.0)
    np.testing.assert_allclose(run(context=other), y, rtol=1e-9, atol=1e-12)
    assert np.abs(y[1] - run(context_mask=None)[1]).max() > 1e-6


def test_references_are_independent_of_picture_and_time(run):
    references = [tiny.inputs()["x"][..., ::-1].copy(), tiny.inputs()["x"][:, :, :2, :4]]
    edit = {"reference": references, "places": (1, 7), "context_mask": None}
    first, other = Taps(), Taps()
    y = run(first, **edit)
    changed = run(other, x=2 * tiny.inputs()["x"], timesteps=np.array([0.5, 0.125]), **edit)
    assert np.abs(changed - y).max() > 1e-3
    for i in range(tiny.SIZE.layers):
        still = [taps[f"transformer_blocks.{i}"][:, : 1 + 24 + 8] for taps in (first, other)]
        np.testing.assert_array_equal(*still)


def test_the_picture_s_places_matter(run):
    x = tiny.inputs()["x"]
    assert np.abs(run(x=x[..., ::-1].copy())[..., ::-1] - run()).max() > 1e-3


def test_names_of_diffusers(weights):
    """Its gate and value are two matrices, gate first in ours."""
    theirs = qwen_image21_keymap(tiny.SIZE.layers).write(weights)
    gate, value = (
        theirs[f"transformer_blocks.1.img_mlp.{name}.weight"].values() for name in ("gate_layer", "proj")
    )
    np.testing.assert_array_equal(
        np.concatenate([gate, value]), weights["transformer_blocks.1.img_mlp.gate_up.weight"].values()
    )
    assert len(theirs) == len(weights) + tiny.SIZE.layers
