"""Wan's autoencoder against answers recorded from diffusers in float64, and what must hold besides."""

from pathlib import Path

import numpy as np
import pytest
import tiny_wan_vae as tiny
from tiny_models import sampled

from refsd.circular import CircularAxes
from refsd.golden.case import ModelRecipe
from refsd.models.vae_wan import decode, encode
from refsd.models.vae_wan.network import wan_vae_keymap, wan_vae_size
from refsd.module import Module
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT64, PROFILES
from refsd.numerics.tensor import stored
from refsd.weights.recipes import make, tensor_recipe

RECORDED = np.load(Path(__file__).parents[2] / "fixtures" / "wan_vae.npz")
WEIGHTS = tiny.weights()
STATISTICS = {"latents_mean": tiny.MEAN, "latents_std": tiny.STD}
# What a profile may be away from the truth: a few times what it measures here.
AWAY = {"float32": 1e-5, "torch-f16": 6e-3, "torch-bf16": 5e-2, "ggml-cpu": 4e-3}


def module(numerics=FLOAT64, **more):
    return Module(WEIGHTS, Arithmetic(numerics), **more)


def run(frames, numerics=FLOAT64):
    m, given = module(numerics), tiny.inputs(frames)
    mean, logvar = encode(m, m.store(given["x"]), **STATISTICS)
    out = decode(m, m.store(given["z"]), **STATISTICS)
    return {"mean": mean, "deviation": np.exp(np.asarray(logvar, np.float64) / 2), "out": out}


def distance(got, want):
    return np.linalg.norm(np.asarray(got, np.float64) - want) / np.linalg.norm(want)


@pytest.mark.parametrize("frames", tiny.FRAMES)
def test_the_recorded_answers_of_diffusers(frames):
    for part, y in run(frames).items():
        for kind in ("qwen-image", "wan"):
            assert distance(sampled(y), RECORDED[f"{kind}/{frames}/{part}"]) <= 1e-12, part


def test_every_answer_is_asked_for():
    parts = [f"{kind}/{n}/{part}" for kind in ("qwen-image", "wan") for n in tiny.FRAMES for part in run(1)]
    assert sorted(RECORDED.files) == sorted([*parts, "about"])


@pytest.mark.jitted
@pytest.mark.parametrize("profile", AWAY)
def test_every_profile_runs_near_the_truth(profile):
    for part, y in run(5, PROFILES[profile]).items():
        assert part == "deviation" or y.dtype == PROFILES[profile].storage_dtype
        assert 0 < distance(sampled(y), RECORDED[f"wan/5/{part}"]) <= AWAY[profile], part


@pytest.mark.jitted
def test_no_frame_sees_a_later_one():
    m, given = module(), tiny.inputs(9)
    latent, out = encode(m, given["x"], **STATISTICS)[0], decode(m, given["z"], **STATISTICS)
    given["x"][:, :, 5:] += 1
    given["z"][:, :, 2:] += 1
    moved, moved_out = encode(m, given["x"], **STATISTICS)[0], decode(m, given["z"], **STATISTICS)
    np.testing.assert_array_equal(moved[:, :, :2], latent[:, :, :2])
    np.testing.assert_array_equal(moved_out[:, :, :5], out[:, :, :5])
    assert distance(moved[:, :, 2], latent[:, :, 2]) > 1e-3 and distance(moved_out[:, :, 5], out[:, :, 5]) > 1e-3


@pytest.mark.jitted
def test_a_picture_is_the_first_frame_of_a_video():
    m, given = module(), tiny.inputs(5)
    whole = encode(m, given["x"], **STATISTICS)[0], decode(m, given["z"], **STATISTICS)
    alone = encode(m, given["x"][:, :, :1], **STATISTICS)[0], decode(m, given["z"][:, :, :1], **STATISTICS)
    for video, picture in zip(whole, alone, strict=True):
        assert picture.shape[2] == 1
        assert distance(picture[:, :, 0], video[:, :, 0]) <= 1e-14


@pytest.mark.jitted
def test_seamless_pictures():
    """A picture whose both axes wrap decodes to the same picture moved, where its latent is moved."""
    m = module(circular=CircularAxes(True, True))
    z = tiny.inputs(1)["z"]
    moved = decode(m, np.roll(z, (1, 2), (3, 4)), **STATISTICS)
    assert distance(moved, np.roll(decode(m, z, **STATISTICS), (8, 16), (3, 4))) <= 1e-13


def test_the_keymap_goes_there_and_back():
    keymap = wan_vae_keymap(7, 4, 2)
    there = keymap.write(WEIGHTS)
    sources, unread = keymap.sources(there)
    assert not unread and set(sources) == set(WEIGHTS) and not set(there) & set(WEIGHTS)
    for ours, source in sources.items():
        np.testing.assert_array_equal(stored(source.read(there).values()).data, WEIGHTS[ours].data)


@pytest.mark.parametrize("half", ["encoder.", "decoder."])
def test_one_half_tells_the_size(half):
    shapes = {name: w.shape for name, w in WEIGHTS.items() if name.startswith(half)}
    assert wan_vae_size(shapes) == tiny.SIZE


def test_gguf_has_no_place_for_five_dimensions(tmp_path):
    with pytest.raises(
        BadInput, match=r'"encoder\.conv1\.weight" has 5 dimensions, GGUF at most 4; write a .safetens'
    ):
        make(ModelRecipe("wan-vae", "f16", tiny=True), tmp_path / "a.gguf")
    assert not list(tmp_path.iterdir())


def test_recipes_draw_scales_about_one():
    recipe = tensor_recipe("encoder.head.0.gamma", (384, 1, 1, 1), "f32")
    assert recipe.offset == 1
