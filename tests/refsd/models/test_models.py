"""Every model against answers recorded from diffusers and transformers in float64, and what must hold besides."""

from pathlib import Path

import numpy as np
import pytest
import tiny_models as tiny

from refsd.components import forward
from refsd.module import Module, Taps
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT64, PROFILES, TORCH_F16

RECORDED = np.load(Path(__file__).parents[2] / "fixtures" / "models.npz")
INPUTS = tiny.inputs()


def run(component, inputs=None, numerics=FLOAT64, weights=None, taps=None, **params):
    m = Module(weights or tiny.weights(tiny.PARTS[component]), Arithmetic(numerics), taps=taps)
    return forward(component, m, inputs or INPUTS[component], {**tiny.PARAMS.get(component, {}), **params})


def distance(got, want):
    return np.linalg.norm(np.asarray(got, np.float64) - want) / np.linalg.norm(want)


@pytest.mark.smoke
@pytest.mark.parametrize("component", tiny.PARTS)
def test_the_recorded_answers_of_the_peers(component):
    outputs = run(component)
    recorded = [name for name in RECORDED.files if name.startswith(f"{component}/")]
    assert [name.split("/")[1] for name in recorded] == list(outputs)
    for name in recorded:
        assert distance(tiny.sampled(outputs[name.split("/")[1]]), RECORDED[name]) <= 1e-12, name


# What a profile may be away from the truth: a few times what it measures here.
AWAY = {
    "float32": 2e-6,
    "torch-f16": 4e-3,
    "torch-bf16": 4e-2,
    "ggml-cpu": 4e-3,
    "ggml-cpu-flash": 6e-3,
    "winograd-f16": 6e-3,
}


@pytest.mark.jitted
@pytest.mark.parametrize("profile", AWAY)
@pytest.mark.parametrize("component", tiny.PARTS)
def test_every_profile_runs_every_model_near_the_truth(component, profile):
    numerics = PROFILES[profile]
    for name, y in run(component, numerics=numerics).items():
        assert y.dtype == numerics.storage_dtype
        away = distance(tiny.sampled(y), RECORDED[f"{component}/{name}"])
        assert away <= AWAY[profile]
        assert away > 0


@pytest.mark.jitted
@pytest.mark.parametrize("component", tiny.PARTS)
def test_the_items_of_a_batch_do_not_meet(component):
    both = run(component)
    for i in range(2):
        alone = run(component, {name: x[i : i + 1] for name, x in INPUTS[component].items()})
        for name, y in both.items():
            assert distance(alone[name][0], y[i]) <= 1e-13


class Read(dict):
    """Weights that know which were read."""

    def __init__(self, tensors):
        super().__init__(tensors)
        self.read = set()

    def __getitem__(self, key):
        self.read.add(key)
        return super().__getitem__(key)


@pytest.mark.parametrize("part", tiny.SHAPES)
def test_every_weight_is_used(part):
    weights = Read(tiny.weights(part))
    for component in tiny.PARTS:
        if tiny.PARTS[component] == part:
            # A look that only asks for shapes does not count.
            m = Module(weights)
            m.shape = lambda name, m=m: dict.__getitem__(m.weights, name).shape
            forward(component, m, INPUTS[component], tiny.PARAMS.get(component))
    assert weights.read == set(weights)


def test_the_unet_taps_every_numbered_block_and_layer():
    taps = Taps()
    run("unet", taps=taps)
    blocks = [f"{side}_blocks.{i}" for side in ("input", "output") for i in range(4)]
    assert {*blocks, "middle_block"} <= set(taps)
    assert taps["input_blocks.0"].shape == (2, 32, 4, 6)
    assert taps["input_blocks.2.0"].shape == (2, 32, 2, 3)
    assert taps["output_blocks.1.2"].shape == (2, 64, 4, 6)
    attended = "output_blocks.3.1.transformer_blocks.0"
    assert {f"{attended}.{part}" for part in ("attn1", "attn2", "ff")} <= set(taps)
    assert "" not in taps


def test_taps_of_a_half_precision_run_have_its_dtype():
    taps = Taps("middle_block*", ops=True)
    run("unet", numerics=TORCH_F16, taps=taps)
    assert len(taps) > 10
    assert {y.dtype for y in taps.values()} == {np.dtype(np.float16)}


def test_a_token_sees_only_the_past():
    ids = INPUTS["clip"]["input_ids"]
    changed = ids.copy()
    changed[:, 4] = 50
    before, after = run("clip")["last_hidden_state"], run("clip", {"input_ids": changed})["last_hidden_state"]
    np.testing.assert_array_equal(before[:, :4], after[:, :4])
    assert (before[:, 4:] != after[:, 4:]).any(axis=-1).all()


def test_clip_pools_at_the_first_end():
    """Ids above eos, as textual inversion appends them, do not draw the pooling to themselves."""
    ids = np.array([[98, 5, 60, 60, 60, 99, 60]])
    y = run("clip", {"input_ids": ids}, eos=60)
    np.testing.assert_array_equal(y["pooled"], y["last_hidden_state"][:, 2])


def test_clip_skip_leaves_layers_out_and_not_the_norm():
    shallow = {
        name: tensor
        for name, tensor in tiny.weights("clip").items()
        if not name.startswith("text_model.encoder.layers.1")
    }
    skipped = run("clip", clip_skip=2)
    np.testing.assert_array_equal(skipped["last_hidden_state"], run("clip", weights=shallow)["last_hidden_state"])
    np.testing.assert_array_equal(skipped["pooled"], run("clip")["pooled"])


def test_the_encoder_pads_right_and_bottom_only():
    """With symmetric padding the first row would see zeros, and the picture would move by half a pixel."""
    x = INPUTS["vae-encoder"]["x"].copy()
    taps = Taps("encoder.down.0.downsample.conv", ops=True)
    run("vae-encoder", {"x": x}, taps=taps)
    h = Taps("encoder.down.0.block.0")
    run("vae-encoder", {"x": x}, taps=h)
    weights = tiny.weights("vae")
    w, b = (
        weights[f"encoder.down.0.downsample.conv.{leaf}"].values().astype(np.float64) for leaf in ("weight", "bias")
    )
    want = np.einsum("ncrs,kcrs->nk", h["encoder.down.0.block.0"][:, :, :3, :3], w) + b
    np.testing.assert_allclose(taps["encoder.down.0.downsample.conv"][:, :, 0, 0], want, rtol=1e-12)
