"""Qwen-Image 2.1's autoencoder against answers recorded from diffusers in float64, and what must hold besides."""

from pathlib import Path

import numpy as np
import pytest
import tiny_vae_qwen_image21 as tiny
from safetensors.numpy import save_file
from tiny_models import sampled
from typer.testing import CliRunner

from refsd.circular import CircularAxes
from refsd.cli import app
from refsd.components import check
from refsd.models.vae_qwen_image21 import decode, encode
from refsd.models.vae_qwen_image21.network import comfyui_keymap, qwen_image21_vae_size
from refsd.module import Module
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT64, PROFILES
from refsd.numerics.tensor import StoredTensor

RECORDED = np.load(Path(__file__).parents[2] / "fixtures" / "vae_qwen_image21.npz")
WEIGHTS = tiny.weights()
STATISTICS = {"latents_mean": tiny.MEAN, "latents_std": tiny.STD}
# What a profile may be away from the truth: a few times what it measures here.
AWAY = {"float32": 1e-5, "torch-f16": 6e-3, "torch-bf16": 5e-2, "ggml-cpu": 4e-3}


def run(numerics=FLOAT64):
    m, given = Module(WEIGHTS, Arithmetic(numerics)), tiny.inputs()
    mean, logvar = encode(m, m.store(given["x"]), **STATISTICS)
    out = decode(m, m.store(given["z"]), **STATISTICS)
    return {"mean": mean, "deviation": np.exp(np.asarray(logvar, np.float64) / 2), "out": out}


def distance(got, want):
    return np.linalg.norm(np.asarray(got, np.float64) - want) / np.linalg.norm(want)


def test_the_recorded_answers_of_diffusers():
    answers = run()
    assert sorted(RECORDED.files) == sorted([*answers, "about"])
    for part, y in answers.items():
        assert distance(sampled(y), RECORDED[part]) <= 1e-12, part


@pytest.mark.jitted
@pytest.mark.parametrize("profile", AWAY)
def test_every_profile_runs_near_the_truth(profile):
    for part, y in run(PROFILES[profile]).items():
        assert part == "deviation" or y.dtype == PROFILES[profile].storage_dtype
        assert 0 < distance(sampled(y), RECORDED[part]) <= AWAY[profile], part


@pytest.mark.jitted
def test_seamless_pictures():
    """A picture whose both axes wrap decodes to the same picture moved, where its latent is moved."""
    m = Module(WEIGHTS, Arithmetic(FLOAT64), circular=CircularAxes(True, True))
    z = tiny.inputs()["z"]
    moved = decode(m, np.roll(z, (1, 1), (2, 3)), **STATISTICS)
    assert distance(moved, np.roll(decode(m, z, **STATISTICS), (8, 8), (2, 3))) <= 1e-13


def comfyui_file():
    return comfyui_keymap(4, 2).write(WEIGHTS)


def test_comfyui_s_file_has_convolutions_over_one_frame():
    there = comfyui_file()
    sources, unread = comfyui_keymap(4, 2).sources(there)
    assert not unread and set(sources) == set(WEIGHTS)
    assert there["encoder.downsamples.1.downsamples.0.residual.2.weight"].shape == (12, 6, 1, 3, 3)
    assert there["encoder.downsamples.1.downsamples.1.resample.1.weight"].shape == (12, 12, 3, 3)
    assert there["decoder.head.0.gamma"].shape == (8, 1, 1, 1)
    for ours, source in sources.items():
        np.testing.assert_array_equal(source.read(there).values(), WEIGHTS[ours].values())


@pytest.mark.parametrize("layout", ["diffusers", "comfyui"])
def test_info_of_both_layouts(tmp_path, layout):
    weights = WEIGHTS if layout == "diffusers" else comfyui_file()
    save_file({name: np.ascontiguousarray(w.values()) for name, w in weights.items()}, tmp_path / "a.safetensors")
    said = CliRunner().invoke(app, ["info", str(tmp_path / "a.safetensors")])
    assert said.exit_code == 0 and "qwen-image21-vae" in said.output and "unknown" not in said.output


@pytest.mark.parametrize("half", ["encoder.", "decoder."])
def test_one_half_tells_the_size(half):
    shapes = {name: w.shape for name, w in WEIGHTS.items() if name.startswith(half)}
    size = qwen_image21_vae_size(shapes)
    assert (size.res_blocks, size.halves, size.latent_channels) == (1, (False, True, True), 3)
    assert (size.widths if half == "encoder." else size.decoder) == (
        tiny.SIZE.widths if half == "encoder." else tiny.SIZE.decoder
    )


@pytest.mark.parametrize(
    ("name", "shape", "match"),
    [
        ("qwen-image21-vae-encoder", (1, 3, 8, 8), "C is 3, the model takes 4"),
        ("qwen-image21-vae-encoder", (1, 4, 8, 12), "W is 12, the model takes a multiple of 8"),
        ("qwen-image21-vae-decoder", (1, 4, 8, 8), "Z is 4, the model takes 3"),
    ],
)
def test_what_does_not_fit_is_refused(name, shape, match):
    argument = "x" if name.endswith("encoder") else "z"
    with pytest.raises(BadInput, match=match):
        check(name, Module(WEIGHTS), {argument: np.zeros(shape)}, STATISTICS)


@pytest.mark.parametrize(
    ("tensor", "component", "argument"),
    [
        ("encoder.down_blocks.1.resnets.0.conv1.weight", "qwen-image21-vae-encoder", "x"),
        ("decoder.up_blocks.1.resnets.0.conv1.weight", "qwen-image21-vae-decoder", "z"),
    ],
)
def test_channels_that_a_shortcut_cannot_share_out_are_refused(tensor, component, argument):
    odd = StoredTensor("f32", (7, 5, 3, 3), np.zeros((7, 5, 3, 3), np.float32))
    m, shape = Module(WEIGHTS | {tensor: odd}), (1, 4, 8, 8) if argument == "x" else (1, 3, 2, 2)
    with pytest.raises(BadInput, match=f'"{tensor}" maps 5 channels to 7'):
        check(component, m, {argument: np.zeros(shape)}, STATISTICS)
