"""T5's and UMT5's encoders against answers recorded from transformers in float64, and what must hold besides."""

from pathlib import Path

import numpy as np
import pytest
import tiny_text_encoders as tiny
from tiny_models import sampled

from refsd.models.t5 import relative_position_bucket, t5_encoder
from refsd.models.t5.network import t5_gguf_keymap, t5_keymap
from refsd.module import Module, Taps
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT64, PROFILES

RECORDED = np.load(Path(__file__).parents[2] / "fixtures" / "t5.npz")
MASKS = {"whole": None, "padded": tiny.MASK}
MODELS = ("t5", "umt5")


def run(model, mask=None, ids=tiny.IDS, numerics=FLOAT64, weights=None, taps=None):
    return t5_encoder(Module(weights or tiny.weights(model), Arithmetic(numerics), taps=taps), ids, mask)


def distance(got, want):
    return np.linalg.norm(np.asarray(got, np.float64) - want) / np.linalg.norm(want)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("model", MODELS)
def test_the_recorded_answers_of_the_peer(model, mask):
    assert distance(sampled(run(model, MASKS[mask])), RECORDED[f"{model}/{mask}"]) <= 1e-12


AWAY = {"float32": 2e-6, "torch-f16": 4e-3, "torch-bf16": 4e-2, "ggml-cpu": 4e-3, "ggml-cpu-flash": 6e-3}


@pytest.mark.jitted
@pytest.mark.parametrize("profile", AWAY)
@pytest.mark.parametrize("mask", MASKS)
def test_every_profile_is_near_the_truth(mask, profile):
    y = run("t5", MASKS[mask], numerics=PROFILES[profile])
    assert y.dtype == PROFILES[profile].storage_dtype
    assert 0 < distance(sampled(y), RECORDED[f"t5/{mask}"]) <= AWAY[profile]


@pytest.mark.parametrize("model", MODELS)
def test_no_token_is_told_what_the_padding_holds(model):
    other = np.where(tiny.MASK, tiny.IDS, (tiny.IDS + 5) % 60)
    before, after = run(model, tiny.MASK), run(model, tiny.MASK, other)
    np.testing.assert_array_equal(before[tiny.MASK > 0], after[tiny.MASK > 0])
    assert (run(model)[1, 0] != before[1, 0]).any()


def test_padding_at_the_end_is_as_if_it_were_not_there():
    n = tiny.MASK[1].sum()
    alone = run("umt5", ids=tiny.IDS[1:, :n])
    assert distance(run("umt5", tiny.MASK)[1:, :n], alone) <= 1e-13


def test_an_item_that_is_all_padding_is_finite_and_disturbs_no_other():
    mask = np.stack([np.ones(tiny.TOKENS), np.zeros(tiny.TOKENS)])
    taps = Taps("*SelfAttention")
    y = run("t5", mask, taps=taps)
    assert np.isfinite(y).all()
    np.testing.assert_array_equal(y[0], run("t5")[0])
    assert not any(tap[1].any() for tap in taps.values())


def test_umt5_with_one_table_everywhere_is_t5():
    weights = tiny.weights("umt5")
    table = "encoder.block.{}.layer.0.SelfAttention.relative_attention_bias.weight"
    shared = {**weights, table.format(1): weights[table.format(0)]}
    single = {name: tensor for name, tensor in weights.items() if name != table.format(1)}
    np.testing.assert_array_equal(run("umt5", weights=shared), run("t5", weights=single))
    assert distance(run("umt5"), run("umt5", weights=shared)) > 1e-3


MISSING = (
    "shared.weight",
    "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
    "encoder.block.1.layer.1.DenseReluDense.wi_1.weight",
)


@pytest.mark.parametrize("missing", MISSING)
def test_a_missing_weight_is_named(missing):
    weights = tiny.weights("t5")
    del weights[missing]
    with pytest.raises(BadInput, match=f'the weights lack "{missing}"'):
        run("t5", weights=weights)


def test_buckets_by_hand():
    """32 buckets, 128 tokens: 0..7 each its own, then 8, 12, 16, 23, 32, 46, 64, 91 begin one (8 * 16^(k/8))."""
    starts = [*range(8), 8, 12, 16, 23, 32, 46, 64, 91]
    distances = np.arange(300)
    want = np.searchsorted(starts, distances, side="right") - 1
    np.testing.assert_array_equal(relative_position_bucket(-distances, 32, 128), want)
    ahead = relative_position_bucket(distances, 32, 128)
    np.testing.assert_array_equal(ahead[1:], want[1:] + 16)
    assert ahead[0] == 0


@pytest.mark.parametrize("name", ("shared.weight", "encoder.embed_tokens.weight"))
def test_the_token_embeddings_have_two_names(name):
    sources, unread = t5_keymap().sources([name, "encoder.final_layer_norm.weight"])
    assert not unread
    assert sources["shared.weight"].names == (name,)
    assert sources["encoder.final_layer_norm.weight"].names == ("encoder.final_layer_norm.weight",)


def test_every_name_in_a_gguf_is_another():
    keymap = t5_gguf_keymap(tiny.UMT5.layers)
    there = [keymap.theirs(name) for name in tiny.SHAPES["umt5"]]
    names = [source.names[0] for source in there if source]
    assert len(set(names)) == len(tiny.SHAPES["umt5"])
    assert set(keymap.sources(names)[0]) == set(tiny.SHAPES["umt5"])
