"""Qwen3's hidden states against answers recorded from transformers in float64, and what must hold besides."""

from pathlib import Path

import numpy as np
import pytest
import tiny_text_encoders as tiny
from tiny_models import sampled

from refsd.models.language_model.network import decoder_keymap
from refsd.models.qwen3 import qwen3
from refsd.models.qwen3.network import qwen3_gguf_keymap
from refsd.module import Module, Taps
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT64, PROFILES

RECORDED = np.load(Path(__file__).parents[2] / "fixtures" / "qwen3.npz")
MASKS = {"whole": None, "padded": tiny.MASK}


def run(mask=None, ids=tiny.IDS, numerics=FLOAT64, weights=None, taps=None):
    return qwen3(Module(weights or tiny.weights("qwen3"), Arithmetic(numerics), taps=taps), ids, mask)


def distance(got, want):
    return np.linalg.norm(np.asarray(got, np.float64) - want) / np.linalg.norm(want)


@pytest.mark.parametrize("mask", MASKS)
def test_the_recorded_answers_of_the_peer(mask):
    hidden_states = run(MASKS[mask])
    assert len(hidden_states) == tiny.QWEN3.layers + 1
    for i, y in enumerate(hidden_states):
        assert distance(sampled(y), RECORDED[f"{mask}/{i}"]) <= 1e-12, i


AWAY = {"float32": 2e-6, "torch-f16": 4e-3, "torch-bf16": 4e-2, "ggml-cpu": 4e-3, "ggml-cpu-flash": 6e-3}


@pytest.mark.jitted
@pytest.mark.parametrize("profile", AWAY)
@pytest.mark.parametrize("mask", MASKS)
def test_every_profile_is_near_the_truth(mask, profile):
    y = run(MASKS[mask], numerics=PROFILES[profile])[-2]
    assert y.dtype == PROFILES[profile].storage_dtype
    assert 0 < distance(sampled(y), RECORDED[f"{mask}/{tiny.QWEN3.layers - 1}"]) <= AWAY[profile]


def test_the_last_but_one_is_a_layer_and_the_last_is_normalised():
    taps = Taps("model.layers.?")
    hidden_states = run(taps=taps)
    assert list(taps) == [f"model.layers.{i}" for i in range(tiny.QWEN3.layers)]
    for y, tap in zip(hidden_states[1:-1], taps.values(), strict=False):
        np.testing.assert_array_equal(y, tap)
    last = taps[f"model.layers.{tiny.QWEN3.layers - 1}"]
    norm = tiny.weights("qwen3")["model.norm.weight"].values().astype(np.float64)
    want = last / np.sqrt((last**2).mean(axis=-1, keepdims=True) + 1e-6) * norm
    np.testing.assert_allclose(hidden_states[-1], want, rtol=1e-12)


def test_a_token_sees_only_the_past():
    changed = tiny.IDS.copy()
    changed[:, 9] = 59
    before, after = run()[-1], run(ids=changed)[-1]
    np.testing.assert_array_equal(before[:, :9], after[:, :9])
    assert (before[:, 9:] != after[:, 9:]).any(axis=-1).all()


def test_padding_at_the_end_is_as_if_it_were_not_there():
    n = tiny.MASK[1].sum()
    alone = run(ids=tiny.IDS[1:, :n])
    for y, want in zip(run(tiny.MASK), alone, strict=True):
        assert distance(y[1:, :n], want) <= 1e-13


def test_padding_in_front_is_not_seen():
    mask = tiny.MASK[:, ::-1]
    other = np.where(mask, tiny.IDS, (tiny.IDS + 5) % 60)
    taps = Taps("*self_attn")
    before, after = run(mask, taps=taps)[-2], run(mask, other)[-2]
    np.testing.assert_array_equal(before[mask > 0], after[mask > 0])
    assert np.isfinite(before).all()
    assert not any(tap[mask == 0].any() for tap in taps.values())
    assert (run()[-2][1, -1] != before[1, -1]).any()


def test_a_missing_weight_is_named():
    weights = tiny.weights("qwen3")
    missing = "model.layers.1.self_attn.k_norm.weight"
    del weights[missing]
    with pytest.raises(BadInput, match=f'the weights lack "{missing}"'):
        run(weights=weights)


def test_names_with_and_without_model():
    for prefix in ("model.", ""):
        names = [prefix + name.removeprefix("model.") for name in tiny.SHAPES["qwen3"]]
        sources, unread = decoder_keymap().sources(names)
        assert set(sources) == set(tiny.SHAPES["qwen3"]) and not unread


def test_every_name_in_a_gguf_is_another():
    keymap = qwen3_gguf_keymap(tiny.QWEN3.layers)
    there = [keymap.theirs(name) for name in tiny.SHAPES["qwen3"]]
    names = [source.names[0] for source in there if source]
    assert len(set(names)) == len(tiny.SHAPES["qwen3"])
    assert set(keymap.sources(names)[0]) == set(tiny.SHAPES["qwen3"])
