"""Qwen2.5-VL's and Qwen3-VL's hidden states against answers recorded from transformers in float64."""

from pathlib import Path

import numpy as np
import pytest
import tiny_text_encoders as tiny
from tiny_models import sampled

from refsd.models.qwen_vl import (
    CONTEXT_LAYERS,
    QWEN2_5_SECTIONS,
    QWEN3_SECTIONS,
    in_turn,
    interleaved,
    mrope_angles,
    qwen2_5_vl,
    qwen3_vl,
    text_and_image_positions,
)
from refsd.models.qwen_vl.network import QWEN3_VL_4B, qwen2_5_vl_gguf_keymap, qwen2_5_vl_keymap, qwen3_vl_keymap
from refsd.module import Module, Taps
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT64, PROFILES

RECORDED = np.load(Path(__file__).parents[2] / "fixtures" / "qwen_vl.npz")
MODELS = {"qwen2_5_vl": (qwen2_5_vl, tiny.SECTIONS), "qwen3_vl": (qwen3_vl, tiny.SECTIONS_3)}
ROOTS = {"qwen2_5_vl": "model.", "qwen3_vl": "model.language_model."}
KEYMAPS = {"qwen2_5_vl": qwen2_5_vl_keymap(), "qwen3_vl": qwen3_vl_keymap()}
POSITIONS = {"padded": None, "images": tiny.POSITIONS}
LAYERS = tiny.QWEN2_5_VL.layers


def run(model, mask=tiny.MASK, ids=tiny.IDS, numerics=FLOAT64, weights=None, taps=None, **given):
    forward, sections = MODELS[model]
    m = Module(weights or tiny.weights(model), Arithmetic(numerics), taps=taps)
    return forward(m, ids, mask, sections=sections, **given)


def distance(got, want):
    return np.linalg.norm(np.asarray(got, np.float64) - want) / np.linalg.norm(want)


@pytest.mark.parametrize("name", POSITIONS)
@pytest.mark.parametrize("model", MODELS)
def test_the_recorded_answers_of_the_peer(model, name):
    hidden_states = run(model, positions=POSITIONS[name])
    assert len(hidden_states) == LAYERS + 1
    for i, y in enumerate(hidden_states):
        assert distance(sampled(y), RECORDED[f"{model}/{name}/{i}"]) <= 1e-12, i


PICTURES = {"pictures": tiny.PICTURES, "image_token": tiny.IMAGE, "positions": tiny.POSITIONS}


def test_pictures_with_deepstack_as_the_peer():
    hidden_states = run("qwen3_vl", **PICTURES, deepstack=tiny.DEEPSTACK)
    for i, y in enumerate(hidden_states):
        assert distance(sampled(y), RECORDED[f"qwen3_vl/pictures/{i}"]) <= 1e-12, i


def test_features_are_added_to_the_pictures_places_alone():
    """After the first layer a word changes by them through attention only, and in no layer before."""
    plain, deep = run("qwen3_vl", **PICTURES), run("qwen3_vl", **PICTURES, deepstack=tiny.DEEPSTACK)
    np.testing.assert_array_equal(plain[1], deep[1])
    before = int(np.argmax(tiny.IDS[0] == tiny.IMAGE))
    np.testing.assert_array_equal(plain[3][0, :before], deep[3][0, :before])
    assert (np.abs(plain[2] - deep[2])[0, before:].max(axis=-1) > 0).all()
    first = run("qwen3_vl", **PICTURES, deepstack=tiny.DEEPSTACK[:1])
    np.testing.assert_array_equal(first[2], deep[2])
    assert distance(first[3], deep[3]) > 1e-3


def test_features_without_pictures_are_refused():
    with pytest.raises(BadInput, match="deepstack belongs to pictures, which are not given"):
        run("qwen3_vl", deepstack=tiny.DEEPSTACK)


AWAY = {"float32": 2e-6, "torch-f16": 4e-3, "torch-bf16": 4e-2, "ggml-cpu": 4e-3}


@pytest.mark.jitted
@pytest.mark.parametrize("profile", AWAY)
@pytest.mark.parametrize("model", MODELS)
def test_every_profile_is_near_the_truth(model, profile):
    y = run(model, numerics=PROFILES[profile], positions=tiny.POSITIONS)[-2]
    assert y.dtype == PROFILES[profile].storage_dtype
    assert 0 < distance(sampled(y), RECORDED[f"{model}/images/{LAYERS - 1}"]) <= AWAY[profile]


@pytest.mark.parametrize("model", MODELS)
def test_the_last_state_without_the_final_norm_is_the_last_layer(model):
    taps = Taps("*.layers.?")
    normed, raw = run(model), run(model, final_norm=False, taps=taps)
    np.testing.assert_array_equal(raw[-1], taps[f"{ROOTS[model]}layers.{LAYERS - 1}"])
    for one, other in zip(normed[:-1], raw[:-1], strict=True):
        np.testing.assert_array_equal(one, other)
    norm = tiny.weights(model)[ROOTS[model] + "norm.weight"].values().astype(np.float64)
    want = raw[-1] / np.sqrt((raw[-1] ** 2).mean(axis=-1, keepdims=True) + 1e-6) * norm
    np.testing.assert_allclose(normed[-1], want, rtol=1e-12)


@pytest.mark.parametrize("model", MODELS)
def test_words_have_one_position_three_times(model):
    L = tiny.IDS.shape[1]
    numbers = np.broadcast_to(np.arange(L)[:, None], (2, L, 3))
    for left, right in zip(run(model), run(model, positions=numbers), strict=True):
        np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("axis", range(3))
def test_each_of_the_three_positions_counts(model, axis):
    moved = tiny.POSITIONS.copy()
    moved[:, 20:, axis] += 1
    assert distance(run(model, positions=moved)[-1], run(model, positions=tiny.POSITIONS)[-1]) > 1e-6


def test_which_position_a_frequency_turns_by():
    assert "".join("THW"[i] for i in in_turn(QWEN2_5_SECTIONS)) == 16 * "T" + 24 * "H" + 24 * "W"
    assert "".join("THW"[i] for i in interleaved(QWEN3_SECTIONS)) == 20 * "THW" + 4 * "T"
    assert "".join("THW"[i] for i in interleaved((3, 1, 2))) == "THWTTW"


def test_angles_of_three_positions():
    positions = np.array([[[2, 3, 5], [0, 1, 7]]])
    angle = mrope_angles(Module({}), positions, in_turn((1, 2, 1)), 10000.0)
    np.testing.assert_allclose(angle[0], [[2, 0.3, 0.03, 0.005], [0, 0.1, 0.01, 0.007]], rtol=1e-14)


def test_a_bias_that_is_missing_changes_all_that_follows():
    weights = tiny.weights("qwen2_5_vl")
    for name in "qkv":
        without = {**weights}
        del without[f"model.layers.0.self_attn.{name}_proj.bias"]
        assert distance(run("qwen2_5_vl", weights=without)[1], run("qwen2_5_vl")[1]) > 1e-3, name


def test_positions_of_words_and_images():
    """Two words, an image of 2 x 3, a word, an image of 3 x 1, a word; then padding and one image of 1 x 2."""
    ids = np.array([[1, 2, *[7] * 6, 3, *[7] * 3, 4], [*[9] * 9, 1, 7, 7, 2]])
    mask = (ids != 9).astype(int)
    first, second = text_and_image_positions(ids, mask, 7, [(2, 3), (3, 1), (1, 2)])
    assert first[:2].tolist() == [[0] * 3, [1] * 3]
    assert first[2:8].tolist() == [[2, 2 + row, 2 + column] for row in range(2) for column in range(3)]
    assert first[8].tolist() == [5] * 3
    assert first[9:12].tolist() == [[6, 6 + row, 6] for row in range(3)]
    assert first[12].tolist() == [9] * 3
    assert not second[:9].any()
    assert second[9:].tolist() == [[0] * 3, [1, 1, 1], [1, 1, 2], [3] * 3]


@pytest.mark.parametrize(
    ("row", "grids", "match"),
    [
        ([1, 7, 7, 2], [(2, 2)], "prompt 0: token 1 begins an image that its tokens do not fit"),
        ([1, 7, 7, 2], [], "prompt 0: token 1 begins an image"),
        ([1, 7, 7], [(2, 2)], "prompt 0: token 1 begins an image"),
        ([1, 7, 2], [(1, 1), (1, 1)], "the prompts have no tokens for 1 of 2 images"),
    ],
)
def test_images_that_do_not_fit_are_refused(row, grids, match):
    with pytest.raises(BadInput, match=match):
        text_and_image_positions(np.array([row]), None, 7, grids)


PREFIXES = ("model.", "model.language_model.", "language_model.model.", "language_model.", "")


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("model", MODELS)
def test_every_prefix_is_read(model, prefix):
    names = [prefix + name.removeprefix(ROOTS[model]) for name in tiny.SHAPES[model]]
    pictures = ["visual.blocks.0.attn.qkv.weight", "model.visual.merger.ln_q.weight", "lm_head.weight"]
    sources, unread = KEYMAPS[model].sources([*names, *pictures])
    assert set(sources) == set(tiny.SHAPES[model]) and unread == pictures
    assert [source.names for source in sources.values()] == [(name,) for name in names]


def test_every_name_in_a_gguf_is_another():
    keymap = qwen2_5_vl_gguf_keymap(LAYERS)
    there = [keymap.theirs(name) for name in tiny.SHAPES["qwen2_5_vl"]]
    names = [source.names[0] for source in there if source]
    assert len(set(names)) == len(tiny.SHAPES["qwen2_5_vl"])
    assert "blk.1.attn_k.bias" in names
    assert set(keymap.sources(names)[0]) == set(tiny.SHAPES["qwen2_5_vl"])


def test_krea_2_s_layers_are_there():
    assert max(CONTEXT_LAYERS) < QWEN3_VL_4B.layers
