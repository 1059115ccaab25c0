"""Mistral's hidden states against answers recorded from transformers in float64, and what must hold besides."""

from pathlib import Path

import numpy as np
import pytest
import tiny_flux2 as tiny
from tiny_models import sampled

from refsd.golden.recipe import Recipe, realize
from refsd.models.mistral import mistral
from refsd.models.mistral.network import _PREFIXES, mistral_gguf_keymap, mistral_keymap, neighbours
from refsd.module import Module, Taps
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT64, PROFILES
from refsd.numerics.tensor import stored

RECORDED = np.load(Path(__file__).parents[2] / "fixtures" / "flux2.npz")
MASKS = {"whole": None, "padded": tiny.MASK}
SHAPES, WEIGHTS, HEAD = tiny.SHAPES["mistral"], tiny.weights("mistral"), tiny.MISTRAL.head_dim


def run(mask=None, ids=tiny.IDS, numerics=FLOAT64, weights=None, taps=None):
    return mistral(Module(weights or WEIGHTS, Arithmetic(numerics), taps=taps), ids, mask, HEAD)


def distance(got, want):
    return np.linalg.norm(np.asarray(got, np.float64) - want) / np.linalg.norm(want)


@pytest.mark.parametrize("mask", MASKS)
def test_the_recorded_answers_of_the_peer(mask):
    hidden_states = run(MASKS[mask])
    assert len(hidden_states) == tiny.MISTRAL.layers + 1
    for i, y in enumerate(hidden_states):
        assert distance(sampled(y), RECORDED[f"mistral/{mask}/{i}"]) <= 1e-12, i


AWAY = {"float32": 2e-6, "torch-f16": 4e-3, "torch-bf16": 4e-2, "ggml-cpu": 4e-3, "ggml-cpu-flash": 6e-3}


@pytest.mark.jitted
@pytest.mark.parametrize("profile", AWAY)
@pytest.mark.parametrize("mask", MASKS)
def test_every_profile_is_near_the_truth(mask, profile):
    y = run(MASKS[mask], numerics=PROFILES[profile])[-2]
    assert y.dtype == PROFILES[profile].storage_dtype
    assert 0 < distance(sampled(y), RECORDED[f"mistral/{mask}/{tiny.MISTRAL.layers - 1}"]) <= AWAY[profile]


def test_only_the_last_is_normalised_and_only_where_there_is_a_norm():
    taps = Taps("model.layers.?")
    hidden_states = run(taps=taps)
    assert list(taps) == [f"model.layers.{i}" for i in range(tiny.MISTRAL.layers)]
    for y, tap in zip(hidden_states[1:-1], taps.values(), strict=False):
        np.testing.assert_array_equal(y, tap)
    last = taps[f"model.layers.{tiny.MISTRAL.layers - 1}"]
    norm = WEIGHTS["model.norm.weight"].values().astype(np.float64)
    want = last / np.sqrt((last**2).mean(axis=-1, keepdims=True) + 1e-5) * norm
    np.testing.assert_allclose(hidden_states[-1], want, rtol=1e-12)
    headless = {name: tensor for name, tensor in WEIGHTS.items() if name != "model.norm.weight"}
    np.testing.assert_array_equal(run(weights=headless)[-1], last)


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


def test_a_missing_weight_is_named():
    missing = "model.layers.1.self_attn.k_proj.weight"
    weights = {name: tensor for name, tensor in WEIGHTS.items() if name != missing}
    with pytest.raises(BadInput, match=f'the weights lack "{missing}"'):
        run(weights=weights)


@pytest.mark.parametrize("prefix", _PREFIXES)
def test_every_prefix_is_read(prefix):
    names = [prefix + name.removeprefix("model.") for name in SHAPES]
    pictures = ["model.vision_tower.ln_pre.weight", "vision_tower.ln_pre.weight", "lm_head.weight"]
    sources, unread = mistral_keymap().sources([*names, *pictures])
    assert set(sources) == set(SHAPES) and unread == pictures
    assert [source.names for source in sources.values()] == [(name,) for name in names]


def test_a_gguf_there_and_back():
    keymap = mistral_gguf_keymap(tiny.MISTRAL.layers, HEAD)
    there = keymap.write(WEIGHTS)
    sources, unread = keymap.sources(there)
    assert set(sources) == set(WEIGHTS) and not unread
    for ours, source in sources.items():
        np.testing.assert_array_equal(source.read(there).data, WEIGHTS[ours].data)
    moved = [
        ours
        for ours, source in sources.items()
        if not np.array_equal(there[source.names[0]].data, WEIGHTS[ours].data)
    ]
    layers = range(tiny.MISTRAL.layers)
    assert moved == [f"model.layers.{i}.self_attn.{name}_proj.weight" for i in layers for name in "qk"]


def test_heads_in_a_gguf_turn_by_neighbours():
    """What llama.cpp, which turns channels 2i and 2i + 1, makes of its rows is what we make of ours."""
    rng = np.random.default_rng(0)
    x, angle = rng.standard_normal((2, 7, 24)), rng.standard_normal((1, 7, HEAD // 2))
    weight = stored(rng.standard_normal((3 * HEAD, 24)))
    (theirs,) = neighbours(HEAD).split(weight, [3 * HEAD])
    m = Module({"ours.weight": weight, "theirs.weight": theirs})
    scores = []
    for name, turn in (("ours", m.rope_halves), ("theirs", m.rope)):
        q = turn(m.linear(name, x).reshape(2, 7, 3, HEAD), angle)
        scores.append(np.einsum("nlhd,njhd->nhlj", q, q))
    np.testing.assert_allclose(scores[0], scores[1], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("type", ("f16", "q8_0", "q4_k"))
def test_packed_rows_are_moved_whole(type):
    weight = realize(Recipe((4 * HEAD, 256), type), "weight")
    (theirs,) = neighbours(HEAD).split(weight, [4 * HEAD])
    order = np.arange(4 * HEAD).reshape(4, 2, HEAD // 2).swapaxes(1, 2).ravel()
    np.testing.assert_array_equal(theirs.values(), weight.values()[order])
    np.testing.assert_array_equal(neighbours(HEAD).join([theirs]).data, weight.data)


def test_rows_that_make_no_heads_are_refused():
    with pytest.raises(BadInput, match=f"15 rows are no whole number of heads of {HEAD}"):
        neighbours(HEAD).join([stored(np.zeros((15, 4)))])
