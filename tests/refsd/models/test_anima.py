"""Anima's transformer: what diffusers answered for it, and what must hold whatever the weights."""

from pathlib import Path

import numpy as np
import pytest
import tiny_anima as tiny

from refsd.models.anima import anima, ntk_factor, rope_angles, unpack, with_padding_mask
from refsd.models.anima.network import anima_keymap
from refsd.models.flux import pack
from refsd.module import Module, Taps
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import stored
from refsd.weights.config import component_config

pytestmark = pytest.mark.jitted
RECORDED = Path(__file__).parents[2] / "fixtures" / "anima.npz"


@pytest.fixture(scope="module")
def weights():
    return {name: stored(w.values().astype(np.float64)) for name, w in tiny.weights().items()}


@pytest.fixture(scope="module")
def run(weights):
    def run(taps=None, qk_eps=1e-5, **changed):
        given = {**tiny.inputs(), **changed}
        return anima(Module(weights, taps=taps), **given, rope_scale=tiny.ROPE_SCALE, qk_eps=qk_eps)

    return run


def test_as_diffusers(run):
    """Recorded by tests/fixtures/record_anima.py; the eps of queries and keys is diffusers'."""
    np.testing.assert_allclose(run(), np.load(RECORDED)["out"], rtol=0, atol=1e-12)
    assert np.abs(run(qk_eps=1e-6) - run()).max() > 1e-9


def test_angles():
    """44, 42 and 42 channels of 128; the first frequency is 1, the last is slowed by the whole scale."""
    angle = rope_angles(Module({}), 2, 3, 128, (1.0, 4.0, 9.0))
    assert angle.shape == (1, 6, 64)
    assert not angle[..., :22].any()
    np.testing.assert_allclose(angle[0, :, 22], [0, 0, 0, 1, 1, 1])
    np.testing.assert_allclose(angle[0, :, 43], [0, 1, 2, 0, 1, 2])
    np.testing.assert_allclose(angle[0, 3, 42], 10000 ** (-40 / 42) / 4, rtol=1e-12)
    np.testing.assert_allclose(angle[0, 1, 63], 10000 ** (-40 / 42) / 9, rtol=1e-12)
    assert ntk_factor(1.0, 44) == 1


def test_tokens_of_the_input_and_of_the_output_have_other_orders():
    x = np.arange(2 * 3 * 4 * 6).reshape(2, 3, 4, 6)
    tokens = pack(x)
    turned = tokens.reshape(2, 6, 3, 4).swapaxes(2, 3).reshape(tokens.shape)
    np.testing.assert_array_equal(unpack(turned, 4, 6), x)
    assert not with_padding_mask(x)[:, 3].any()


def test_the_text_is_not_rotated(run):
    context = tiny.inputs()["context"]
    np.testing.assert_allclose(run(context=context[:, ::-1].copy()), run(), rtol=1e-9, atol=1e-12)


def test_blocks_are_taps(run):
    taps = Taps()
    run(taps)
    parts = ("", ".self_attn", ".cross_attn", ".mlp")
    assert {*taps} == {*(f"blocks.{i}{part}" for i in (0, 1) for part in parts), "t_embedder.1", "final_layer"}


def test_names_of_diffusers(weights):
    theirs = anima_keymap(tiny.SIZE.layers).write(weights)
    assert len(theirs) == len(weights)
    for theirs_name, ours in (
        ("transformer_blocks.1.norm2.linear_1.weight", "blocks.1.adaln_modulation_cross_attn.1.weight"),
        ("transformer_blocks.1.attn1.to_out.0.weight", "blocks.1.self_attn.output_proj.weight"),
    ):
        np.testing.assert_array_equal(theirs[theirs_name].values(), weights[ours].values())


def test_config(tmp_path, weights):
    shapes = {name: tensor.shape for name, tensor in weights.items()}
    assert component_config("anima", tmp_path, shapes, None) == {"rope_scale": [1.0, 4.0, 4.0]}
    assert component_config("anima", tmp_path, shapes, {"rope_scale": [1, 3, 3]}) == {"rope_scale": [1.0, 3.0, 3.0]}
    for wrong in ([1, 4], [1, 4, 0], "1, 4, 4", [1, 4, "4"]):
        with pytest.raises(BadInput, match=r"rope_scale is .*; three numbers above 0 expected"):
            component_config("anima", tmp_path, shapes, {"rope_scale": wrong})
    with pytest.raises(BadInput, match="extra_pos_embed_type is 'learnable'; refsd computes None only"):
        component_config("anima", tmp_path, shapes, {"extra_pos_embed_type": "learnable"})
