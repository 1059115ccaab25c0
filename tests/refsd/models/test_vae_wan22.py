"""Wan 2.2's autoencoder against answers recorded from diffusers in float64, and what must hold besides."""

from pathlib import Path

import numpy as np
import pytest
import tiny_vae_wan22 as tiny
from safetensors.numpy import save_file
from tiny_models import sampled
from typer.testing import CliRunner

from refsd.circular import CircularAxes
from refsd.cli import app
from refsd.components import check
from refsd.models.vae_wan import averaged, decode_wan22, encode_wan22, repeated, to_pixels, to_squares
from refsd.models.vae_wan.wan22 import wan22_vae_keymap, wan22_vae_size
from refsd.module import Module
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT64, PROFILES
from refsd.numerics.tensor import StoredTensor

RECORDED = np.load(Path(__file__).parents[2] / "fixtures" / "vae_wan22.npz")
WEIGHTS = tiny.weights()
STATISTICS = {"latents_mean": tiny.MEAN, "latents_std": tiny.STD}
# What a profile may be away from the truth: a few times what it measures here.
AWAY = {"float32": 1e-5, "torch-f16": 6e-3, "torch-bf16": 5e-2, "ggml-cpu": 4e-3}


def module(numerics=FLOAT64, **more):
    return Module(WEIGHTS, Arithmetic(numerics), **more)


def run(frames, numerics=FLOAT64):
    m, given = module(numerics), tiny.inputs(frames)
    mean, logvar = encode_wan22(m, m.store(given["x"]), **STATISTICS)
    out = decode_wan22(m, m.store(given["z"]), **STATISTICS)
    return {"mean": mean, "deviation": np.exp(np.asarray(logvar, np.float64) / 2), "out": out}


def distance(got, want):
    return np.linalg.norm(np.asarray(got, np.float64) - want) / np.linalg.norm(want)


@pytest.mark.parametrize("frames", tiny.FRAMES)
def test_the_recorded_answers_of_diffusers(frames):
    for part, y in run(frames).items():
        assert distance(sampled(y), RECORDED[f"{frames}/{part}"]) <= 1e-12, part


def test_every_answer_is_asked_for():
    assert sorted(RECORDED.files) == sorted([*(f"{n}/{part}" for n in tiny.FRAMES for part in run(1)), "about"])


@pytest.mark.jitted
@pytest.mark.parametrize("profile", AWAY)
def test_every_profile_runs_near_the_truth(profile):
    for part, y in run(5, PROFILES[profile]).items():
        assert part == "deviation" or y.dtype == PROFILES[profile].storage_dtype
        assert 0 < distance(sampled(y), RECORDED[f"5/{part}"]) <= AWAY[profile], part


@pytest.mark.jitted
def test_no_frame_sees_a_later_one():
    m, given = module(), tiny.inputs(9)
    latent, out = encode_wan22(m, given["x"], **STATISTICS)[0], decode_wan22(m, given["z"], **STATISTICS)
    given["x"][:, :, 5:] += 1
    given["z"][:, :, 2:] += 1
    moved, moved_out = encode_wan22(m, given["x"], **STATISTICS)[0], decode_wan22(m, given["z"], **STATISTICS)
    np.testing.assert_array_equal(moved[:, :, :2], latent[:, :, :2])
    np.testing.assert_array_equal(moved_out[:, :, :5], out[:, :, :5])
    assert distance(moved[:, :, 2], latent[:, :, 2]) > 1e-3 and distance(moved_out[:, :, 5], out[:, :, 5]) > 1e-3


@pytest.mark.jitted
def test_seamless_pictures():
    """A picture whose both axes wrap decodes to the same picture moved, where its latent is moved."""
    m = module(circular=CircularAxes(True, True))
    z = tiny.inputs(1)["z"]
    moved = decode_wan22(m, np.roll(z, (1, 2), (3, 4)), **STATISTICS)
    assert distance(moved, np.roll(decode_wan22(m, z, **STATISTICS), (16, 32), (3, 4))) <= 1e-13


def test_squares_of_pixels_are_channels_with_columns_outside_rows():
    x = np.arange(2 * 4 * 6.0).reshape(1, 2, 1, 4, 6)
    squares = to_squares(x)
    assert squares.shape == (1, 8, 1, 2, 3)
    # The second channel of a square is the pixel below the first.
    np.testing.assert_array_equal(squares[0, :4, 0, 1, 2], x[0, 0, 0, [2, 3, 2, 3], [4, 4, 5, 5]])
    np.testing.assert_array_equal(to_pixels(squares), x)


def test_shortcuts_average_boxes_and_repeat_them():
    """Frames 1 + 2F: an empty frame before the first halves its average; on the way up the first stays one."""
    x = np.random.default_rng(0).standard_normal((1, 2, 5, 2, 4))
    y = averaged(x, frames=2, side=2, outputs=2)
    assert y.shape == (1, 2, 3, 1, 2)
    np.testing.assert_allclose(y[0, 1, 0, 0, 1], x[0, 1, 0, :, 2:].sum() / 8, rtol=1e-15)
    np.testing.assert_allclose(y[0, 1, 2, 0, 0], x[0, 1, 3:5, :, :2].mean(), rtol=1e-15)
    z = repeated(y, frames=2, side=2, outputs=2)
    assert z.shape == x.shape
    np.testing.assert_array_equal(z[0, 1, 1:3, :, 2:], np.full((2, 2, 2), y[0, 1, 1, 0, 1]))
    np.testing.assert_array_equal(z[0, 0, 0, :, :2], np.full((2, 2), y[0, 0, 0, 0, 0]))


def diffusers_file():
    return wan22_vae_keymap(4, 1, 2).write(WEIGHTS)


def test_the_keymap_goes_there_and_back():
    there = diffusers_file()
    sources, unread = wan22_vae_keymap(4, 1, 2).sources(there)
    assert not unread and set(sources) == set(WEIGHTS)
    assert {"encoder.down_blocks.1.downsampler.time_conv.weight", "quant_conv.bias"} < set(there)
    assert "decoder.up_blocks.3.resnets.1.conv2.weight" in there
    for ours, source in sources.items():
        np.testing.assert_array_equal(source.read(there).values(), WEIGHTS[ours].values())


@pytest.mark.parametrize("layout", ["original", "diffusers"])
def test_info_of_both_layouts(tmp_path, layout):
    weights = WEIGHTS if layout == "original" else diffusers_file()
    save_file({name: np.ascontiguousarray(w.values()) for name, w in weights.items()}, tmp_path / "a.safetensors")
    said = CliRunner().invoke(app, ["info", str(tmp_path / "a.safetensors")])
    assert said.exit_code == 0 and "wan22-vae" in said.output and "unknown" not in said.output


@pytest.mark.parametrize("half", ["encoder.", "decoder."])
def test_one_half_tells_the_size(half):
    shapes = {name: w.shape for name, w in WEIGHTS.items() if name.startswith(half)}
    size = wan22_vae_size(shapes)
    missing = (
        {"decoder": size.decoder} if half == "encoder." else {"channels": size.channels, "widths": size.widths}
    )
    assert size == tiny.SIZE._replace(**missing)


@pytest.mark.parametrize(
    ("name", "shape", "match"),
    [
        ("wan22-vae-encoder", (1, 12, 1, 16, 16), "C is 12, the model takes 3"),
        ("wan22-vae-encoder", (1, 3, 1, 16, 24), "W is 24, the model takes a multiple of 16"),
        ("wan22-vae-encoder", (1, 3, 16, 16), r"expected \[N, C, F, H, W\]"),
        ("wan22-vae-decoder", (1, 4, 1, 8, 8), "Z is 4, the model takes 3"),
    ],
)
def test_what_does_not_fit_is_refused(name, shape, match):
    with pytest.raises(BadInput, match=match):
        check(name, module(), {"x" if name.endswith("encoder") else "z": np.zeros(shape)}, STATISTICS)


@pytest.mark.parametrize(
    ("tensor", "component", "argument"),
    [
        ("encoder.downsamples.1.downsamples.0.residual.2.weight", "wan22-vae-encoder", "x"),
        ("decoder.upsamples.1.upsamples.0.residual.2.weight", "wan22-vae-decoder", "z"),
    ],
)
def test_channels_that_a_shortcut_cannot_share_out_are_refused(tensor, component, argument):
    odd = StoredTensor("f32", (7, 5, 3, 3, 3), np.zeros((7, 5, 3, 3, 3), np.float32))
    m, shape = Module(WEIGHTS | {tensor: odd}), (1, 3, 1, 16, 16) if argument == "x" else (1, 3, 1, 2, 2)
    with pytest.raises(BadInput, match=f'"{tensor}" maps 5 channels to 7'):
        check(component, m, {argument: np.zeros(shape)}, STATISTICS)
