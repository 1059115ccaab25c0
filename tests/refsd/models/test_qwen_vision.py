"""Qwen2.5-VL's vision tower against an answer recorded from transformers in float64, and what must hold besides."""

from pathlib import Path

import numpy as np
import pytest
import tiny_qwen_vision as tiny
import tiny_text_encoders as text
from tiny_models import sampled

from refsd.models.qwen_vision import patches, places, qwen2_5_vision, windows
from refsd.models.qwen_vl import qwen2_5_vl
from refsd.module import Module
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT64, PROFILES

RECORDED = np.load(Path(__file__).parents[2] / "fixtures" / "qwen_vision.npz")


def run(x=None, numerics=FLOAT64, window=tiny.WINDOW, whole=tiny.WHOLE):
    m = Module(tiny.weights(), Arithmetic(numerics))
    return qwen2_5_vision(m, m.store(tiny.pictures() if x is None else x), tiny.PATCH, window, tiny.HEADS, whole)


def distance(got, want):
    return np.linalg.norm(np.asarray(got, np.float64) - want) / np.linalg.norm(want)


def test_the_recorded_answer_of_the_peer():
    assert distance(sampled(run()), RECORDED["tokens"]) <= 1e-12


@pytest.mark.jitted
@pytest.mark.parametrize(("profile", "away"), [("float32", 2e-6), ("torch-f16", 4e-3), ("ggml-cpu", 4e-3)])
def test_every_profile_is_near_the_truth(profile, away):
    y = run(numerics=PROFILES[profile])
    assert y.dtype == PROFILES[profile].storage_dtype
    assert 0 < distance(sampled(y), RECORDED["tokens"]) <= away


def test_windows_of_a_picture_that_they_do_not_divide():
    order, sizes = windows(3, 5, 2)
    assert order.tolist() == [0, 1, 5, 6, 2, 3, 7, 8, 4, 9, 10, 11, 12, 13, 14]
    assert sizes == [16, 16, 8, 8, 8, 4]


def test_a_token_is_made_of_neighbours():
    assert places(1, 2).tolist() == [[[0, 0], [0, 1], [1, 0], [1, 1]], [[0, 2], [0, 3], [1, 2], [1, 3]]]
    x = np.arange(3 * 4 * 8).reshape(1, 3, 4, 8)
    cut = patches(x, 2).reshape(2, 4, 3, 2, 2, 2)
    for token, of in enumerate(places(1, 2)):
        for patch, (row, column) in enumerate(of):
            want = x[0, :, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2]
            for frame in range(2):
                np.testing.assert_array_equal(cut[token, patch, :, frame], want)


def test_windows_hide_the_rest_of_the_picture_and_a_whole_block_does_not():
    """Without a block that sees all, a pixel changes the tokens of its own window only."""
    x = tiny.pictures().astype(np.float64)
    changed = x.copy()
    changed[:, :, 0, 0] += 1
    apart = np.abs(run(changed, whole=()) - run(x, whole=())).max(axis=(0, 2)).reshape(3, 5) > 0
    assert apart.tolist() == [[True, True, False, False, False]] * 2 + [[False] * 5]
    assert (np.abs(run(changed) - run(x)).max(axis=2) > 0).all()


def test_pictures_of_other_sizes_are_refused():
    with pytest.raises(BadInput, match="a picture of 24 x 36 pixels, expected multiples of 8: resize it"):
        run(np.zeros((1, 3, 24, 36)))


def test_pictures_take_the_place_of_their_tokens():
    m, ids = Module(text.weights("qwen2_5_vl")), np.array([[1, 7, 7, 2], [7, 3, 4, 5]])
    table = text.weights("qwen2_5_vl")["model.embed_tokens.weight"].values().astype(np.float64)
    tokens = table[[20, 21, 22]]
    given = {"sections": text.SECTIONS}
    seen = qwen2_5_vl(m, ids, pictures=tokens, image_token=7, **given)
    want = qwen2_5_vl(m, np.array([[1, 20, 21, 2], [22, 3, 4, 5]]), **given)
    np.testing.assert_array_equal(seen[-1], want[-1])
    with pytest.raises(BadInput, match="the prompts have 3 image tokens, the pictures 2"):
        qwen2_5_vl(m, ids, pictures=tokens[:2], image_token=7, **given)
