"""Anima's text conditioner: what diffusers answered for it, where files hold it, and what must hold anyway."""

from pathlib import Path

import numpy as np
import pytest
import tiny_anima as tiny

from refsd.files.writers import Spec, write_safetensors
from refsd.models.anima_conditioner import anima_conditioner
from refsd.module import Module, Taps
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import stored
from refsd.weights import open_checkpoint
from refsd.weights.config import component_config

pytestmark = pytest.mark.jitted
RECORDED = Path(__file__).parents[2] / "fixtures" / "anima.npz"


@pytest.fixture(scope="module")
def weights():
    return {name: stored(w.values().astype(np.float64)) for name, w in tiny.conditioner_weights().items()}


@pytest.fixture(scope="module")
def run(weights):
    def run(taps=None, length=tiny.LENGTH, **changed):
        return anima_conditioner(
            Module(weights, taps=taps), **{**tiny.conditioner_inputs(), **changed}, length=length
        )

    return run


def test_as_diffusers(run):
    """Recorded by tests/fixtures/record_anima.py."""
    np.testing.assert_allclose(run(), np.load(RECORDED)["context"], rtol=0, atol=1e-12)


def test_padding_is_zero(run):
    """That of T5's tokens, and what is appended; tokens are never cut."""
    out = run()
    assert out.shape == (2, 13, 24)
    assert out[0, :9].any(axis=1).all() and out[1, :5].any(axis=1).all()
    assert not out[0, 9:].any() and not out[1, 5:].any()
    assert run(length=1).shape == (2, 9, 24)


def test_padding_changes_nothing(run):
    """Neither ids nor hidden states under a mask matter."""
    given = tiny.conditioner_inputs()
    ids, context = given["input_ids"].copy(), given["context"].copy()
    ids[1, 5:], context[0, 3:] = 7, 100.0
    np.testing.assert_array_equal(run(input_ids=ids, context=context), run())
    short = {name: x[:1, :3] if "context" in name else x[:1] for name, x in given.items()}
    np.testing.assert_allclose(run(**{**short, "context_mask": None})[0], run()[0], rtol=0, atol=1e-13)


def test_places_count(run):
    """The same hidden states in another order are another prompt."""
    context = tiny.conditioner_inputs()["context"]
    turned = run(context=context[:, ::-1].copy(), context_mask=None)
    assert np.abs(turned - run(context_mask=None)).max() > 1e-3


def test_blocks_are_taps(run):
    taps = Taps()
    run(taps)
    assert {*taps} == {f"blocks.{i}{part}" for i in (0, 1) for part in ("", ".self_attn", ".cross_attn", ".mlp")}


@pytest.mark.parametrize("prefix", ["", "net.", "model.diffusion_model."])
def test_it_lies_in_the_transformer_s_file(tmp_path, weights, prefix):
    both = {f"llm_adapter.{name}": w for name, w in weights.items()} | tiny.weights()
    file = tmp_path / "anima.safetensors"
    specs = {f"{prefix}{name}": Spec(w.type, w.shape) for name, w in both.items()}
    write_safetensors(file, specs, both.values())
    checkpoint = open_checkpoint(file)
    assert [*checkpoint.components] == ["anima-conditioner", "anima"]
    parts = open_checkpoint(None, {"--diffusion-model": file})
    assert {*parts.components} == {"anima-conditioner", "anima"}
    for name, held in checkpoint.components.items():
        ours = weights if name == "anima-conditioner" else tiny.weights()
        assert held.weights.shapes == {key: w.shape for key, w in ours.items()}


def test_config(tmp_path, weights):
    shapes = {name: tensor.shape for name, tensor in weights.items()}
    assert component_config("anima-conditioner", tmp_path, shapes, {"min_sequence_length": 512}) == {}
    with pytest.raises(BadInput, match="use_layer_norm is True; refsd computes False only"):
        component_config("anima-conditioner", tmp_path, shapes, {"use_layer_norm": True})
