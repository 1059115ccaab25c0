"""LTX-2's autoencoder against answers recorded from diffusers in float64, and what must hold besides."""

import json
from pathlib import Path

import numpy as np
import pytest
import tiny_vae_ltx2 as tiny
from safetensors.numpy import save_file
from tiny_models import sampled
from typer.testing import CliRunner

from refsd.cli import app
from refsd.components import check
from refsd.models.vae_ltx2 import (
    STATISTICS,
    decode,
    encode,
    folded,
    in_turn,
    to_patches,
    to_pixels,
    unfolded,
    with_frames_around,
)
from refsd.models.vae_ltx2.network import (
    LTX2_VAE,
    LTX2_VAE_SIZE,
    LTX23_VAE_SIZE,
    LTX_VIDEO_VAE_SIZE,
    ltx2_vae_keymap,
    ltx2_vae_shapes,
    ltx2_vae_size,
)
from refsd.module import Module
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT64, PROFILES
from refsd.numerics.tensor import stored
from refsd.weights import open_checkpoint

RECORDED = np.load(Path(__file__).parents[2] / "fixtures" / "vae_ltx2.npz")
WEIGHTS = tiny.weights()
# What a profile may be away from the truth: a few times what it measures here.
AWAY = {"float32": 1e-5, "torch-f16": 3e-2, "torch-bf16": 1e-1, "ggml-cpu": 6e-3}


def run(way, frames, numerics=FLOAT64):
    m, half = Module(WEIGHTS, Arithmetic(numerics)), way.partition("/")[0]
    values = {name: x if name == "timesteps" else m.store(x) for name, x in tiny.inputs(half, frames).items()}
    if half == "decoder":
        return {"out": decode(m, **values, **tiny.WAYS[way])}
    return dict(zip(("mean", "logvar"), encode(m, **values, **tiny.WAYS[way]), strict=True))


def distance(got, want):
    return np.linalg.norm(np.asarray(got, np.float64) - want) / np.linalg.norm(want)


@pytest.mark.jitted
@pytest.mark.parametrize("frames", [1, 2])
@pytest.mark.parametrize("way", tiny.WAYS)
def test_the_recorded_answers_of_diffusers(way, frames):
    answer = run(way, frames)
    assert {name for name in RECORDED.files if name.startswith(f"{way}/{frames}/")} == {
        f"{way}/{frames}/{part}" for part in answer
    }
    for part, y in answer.items():
        assert distance(sampled(y), RECORDED[f"{way}/{frames}/{part}"]) <= 1e-12, part


@pytest.mark.jitted
@pytest.mark.parametrize("way", ["encoder/causal", "decoder/later"])
@pytest.mark.parametrize("profile", AWAY)
def test_every_profile_runs_near_the_truth(profile, way):
    for part, y in run(way, 1, PROFILES[profile]).items():
        assert y.dtype == PROFILES[profile].storage_dtype
        assert 0 < distance(sampled(y), RECORDED[f"{way}/1/{part}"]) <= AWAY[profile], part


def test_patches_have_columns_outside_rows():
    x = np.arange(2 * 8 * 8.0).reshape(1, 2, 1, 8, 8)
    patches = to_patches(x)
    assert patches.shape == (1, 32, 1, 2, 2)
    assert patches[0, 16 + 4 * 3 + 1, 0, 1, 0] == x[0, 1, 0, 4 + 1, 3]
    np.testing.assert_array_equal(to_pixels(patches), x)


def test_values_that_become_channels_and_back():
    x = np.arange(4 * 4 * 4.0).reshape(1, 1, 4, 4, 4)
    y = folded(x, 2, 2)
    assert y.shape == (1, 8, 2, 2, 2) and y[0, 4 + 2 + 1, 1, 0, 1] == x[0, 0, 3, 1, 3]
    np.testing.assert_array_equal(unfolded(y, 2, 2), x[:, :, 1:])
    np.testing.assert_array_equal(unfolded(folded(x, 1, 2), 1, 2), x)
    assert in_turn(x[:, :, :2].reshape(1, 2, 4, 4), 4)[0, :, 0, 0].tolist() == [0, 16, 0, 16]


def test_frames_around_a_video():
    x = np.arange(3.0).reshape(1, 1, 3, 1, 1)
    assert with_frames_around(x, True).ravel().tolist() == [0, 0, 0, 1, 2]
    assert with_frames_around(x, False).ravel().tolist() == [0, 0, 1, 2, 2]


def test_a_side_of_one_has_no_mirror_image():
    m = Module(WEIGHTS)
    given = {"z": np.zeros((1, 4, 1, 1, 3)), "timesteps": np.zeros(1)}
    with pytest.raises(BadInput, match="frames of 1 x 3 have no mirror image: expected 2 x 2 or more"):
        decode(m, **given)
    assert decode(m, **given, decoder_mirrors=False).shape == (1, 3, 1, 32, 96)


def test_a_deviation_of_0_is_refused():
    m = Module(WEIGHTS | {STATISTICS[1]: stored(np.array([1, 0, 2, 1], np.float32))})
    with pytest.raises(BadInput, match=r'"per_channel_statistics\.std-of-means" holds 0: a deviation is above 0'):
        decode(m, np.zeros((1, 4, 1, 2, 2)), np.zeros(1))


def diffusers_file():
    return ltx2_vae_keymap(len(tiny.SIZE.down), len(tiny.SIZE.up)).write(WEIGHTS)


def test_the_keymap_goes_there_and_back():
    there = diffusers_file()
    sources, unread = ltx2_vae_keymap(4, 4).sources(there)
    assert not unread and set(sources) == set(WEIGHTS)
    for ours, source in sources.items():
        np.testing.assert_array_equal(source.read(there).values(), WEIGHTS[ours].values())


@pytest.mark.parametrize("layout", ["original", "diffusers"])
@pytest.mark.parametrize("prefix", ["", "vae."])
@pytest.mark.parametrize("half", ["", "encoder.", "decoder."])
def test_info_of_every_layout(tmp_path, layout, prefix, half):
    """Lightricks' files have further statistics, which nothing reads."""
    weights = WEIGHTS if layout == "original" else diffusers_file()
    arrays = {name: np.array(w.values(), order="C") for name, w in weights.items() if name.startswith(half)}
    if layout == "original":
        for name in ("channel", "mean-of-stds", "mean-of-stds_over_std-of-means"):
            arrays[f"per_channel_statistics.{name}"] = np.zeros(4, np.float32)
    save_file({prefix + name: array for name, array in arrays.items()}, tmp_path / "a.safetensors")
    said = CliRunner().invoke(app, ["info", str(tmp_path / "a.safetensors"), "--json"])
    read = json.loads(said.output)
    assert read["components"].keys() == {"ltx2-vae"}
    assert not read["components"]["ltx2-vae"]["unused"] and not read["unknown"]
    assert bool(read["components"]["ltx2-vae"]["missing"]) == bool(half)


@pytest.mark.parametrize("half", ["encoder.", "decoder."])
def test_one_half_tells_the_size(half):
    shapes = {name: w.shape for name, w in WEIGHTS.items() if name.startswith(half)}
    usual = LTX23_VAE_SIZE if half == "decoder." else LTX2_VAE_SIZE
    of_this = usual._fields[:3] if half == "encoder." else (*usual._fields[3:6], "conditioned")
    want = usual._replace(**{field: getattr(tiny.SIZE, field) for field in [*of_this, "latent_channels"]})
    assert ltx2_vae_size(shapes) == want


@pytest.mark.parametrize(
    ("size", "mirrors", "shortcuts"),
    [(LTX2_VAE_SIZE, True, True), (LTX23_VAE_SIZE, False, False), (LTX_VIDEO_VAE_SIZE, False, True)],
)
def test_the_decoder_tells_the_conventions_of_a_file_without_a_config(size, mirrors, shortcuts):
    found = LTX2_VAE.config(Path("a.safetensors"), ltx2_vae_shapes(size), {})
    assert found == {
        "encoder_causal": True,
        "encoder_mirrors": False,
        "decoder_causal": False,
        "decoder_mirrors": mirrors,
        "shortcuts": shortcuts,
    }


def folder_with(tmp_path, **fields):
    assert LTX2_VAE.folder is not None
    place = tmp_path / "vae"
    place.mkdir(exist_ok=True)
    arrays = {name: np.array(w.values(), order="C") for name, w in diffusers_file().items()}
    save_file(arrays, place / LTX2_VAE.folder.file)
    config = {**LTX2_VAE.folder.config(tiny.SIZE), **fields}
    (place / "config.json").write_text(json.dumps({n: value for n, value in config.items() if value is not None}))
    return open_checkpoint(tmp_path).components["ltx2-vae"].config


def test_a_config_tells_the_conventions(tmp_path):
    """A field that is missing is as in diffusers' class: LTX-2's decoder sees no later frame, LTX-Video's does."""
    assert folder_with(tmp_path)["decoder_causal"] is False
    found = folder_with(
        tmp_path,
        decoder_causal=None,
        decoder_spatial_padding_mode=None,
        upsample_residual=None,
        encoder_causal=False,
        encoder_spatial_padding_mode="reflect",
    )
    assert found == {
        "encoder_causal": False,
        "encoder_mirrors": True,
        "decoder_causal": True,
        "decoder_mirrors": True,
        "shortcuts": True,
    }
    missing = dict.fromkeys(("decoder_causal", "decoder_spatial_padding_mode", "upsample_residual"))
    found = folder_with(tmp_path, _class_name="AutoencoderKLLTXVideo", **missing)
    assert not any(found[name] for name in ("decoder_causal", "decoder_mirrors", "shortcuts"))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("patch_size", 2),
        ("patch_size_t", 2),
        ("scaling_factor", 0.5),
        ("decoder_inject_noise", [True, False, False, False, False]),
        ("decoder_causal", 1),
        ("encoder_causal", "true"),
        ("decoder_spatial_padding_mode", "replicate"),
        ("encoder_spatial_padding_mode", True),
        ("upsample_residual", [True, False, True, True]),
        ("upsample_residual", 1),
        ("upsample_residual", [True, True]),
        ("upsample_residual", []),
    ],
)
def test_a_config_of_another_network_is_refused(tmp_path, field, value):
    with pytest.raises(BadInput, match=f"config.json: {field} is "):
        folder_with(tmp_path, **{field: value})


@pytest.mark.parametrize(
    ("name", "shape", "times", "match"),
    [
        ("encoder", (1, 4, 1, 32, 32), False, "C is 4, the model takes 3"),
        ("encoder", (1, 3, 1, 32, 48), False, "W is 48, the model takes a multiple of 32"),
        ("encoder", (1, 3, 1, 16, 32), False, "H is 16, the model takes a multiple of 32"),
        ("encoder", (1, 3, 8, 32, 32), False, "F is 8, the model takes 1 more than a multiple of 8"),
        ("encoder", (1, 3, 32, 32), False, r"expected \[N, C, F, H, W\]"),
        ("decoder", (1, 3, 1, 2, 2), True, "Z is 3, the model takes 4"),
        ("decoder", (1, 4, 1, 2, 2), False, "is needed: these weights embed the latent's noise level"),
    ],
)
def test_what_does_not_fit_is_refused(name, shape, times, match):
    given = {"x" if name == "encoder" else "z": np.zeros(shape)} | ({"timesteps": np.zeros(1)} if times else {})
    with pytest.raises(BadInput, match=match):
        check(f"ltx2-vae-{name}", Module(WEIGHTS), given, {})


def test_a_noise_level_that_nothing_reads_is_refused():
    m = Module({name: w for name, w in WEIGHTS.items() if not name.startswith("decoder.last_")})
    with pytest.raises(BadInput, match="of no use: these weights do not embed the latent's noise level"):
        check("ltx2-vae-decoder", m, {"z": np.zeros((1, 4, 1, 2, 2)), "timesteps": np.zeros(1)}, {})


@pytest.mark.parametrize(
    ("tensor", "shape", "match"),
    [
        (
            "encoder.down_blocks.1.conv.conv.weight",
            (8, 4, 3, 3, 3),
            "has 8 channels for 8: refsd computes steps of",
        ),
        (
            "encoder.down_blocks.1.conv.conv.weight",
            (5, 4, 3, 3, 3),
            "has 8 channels for 5: refsd computes steps of",
        ),
        ("encoder.down_blocks.5.conv.conv.weight", (2, 7, 3, 3, 3), "whose shortcut has equal groups"),
        ("decoder.up_blocks.3.conv.conv.weight", (48, 16, 3, 3, 3), "has 48 channels for 16"),
        ("decoder.up_blocks.3.conv.conv.weight", (32, 17, 3, 3, 3), "whose shortcut has equal groups"),
    ],
)
def test_damaged_weights_are_refused(tensor, shape, match):
    m, half = Module(WEIGHTS | {tensor: stored(np.zeros(shape, np.float32))}), tensor.partition(".")[0]
    given = {"x": np.zeros((1, 3, 1, 32, 32))} if half == "encoder" else {"z": np.zeros((1, 4, 1, 2, 2))}
    with pytest.raises(BadInput, match=match):
        check(f"ltx2-vae-{half}", m, given, {})


@pytest.mark.parametrize(("half", "blocks"), [("encoder", "down_blocks"), ("decoder", "up_blocks")])
def test_a_half_that_ends_between_two_levels_is_refused(half, blocks):
    m = Module({name: w for name, w in WEIGHTS.items() if not name.startswith(f"{half}.{blocks}.8.")})
    given = {"x": np.zeros((1, 3, 1, 32, 32))} if half == "encoder" else {"z": np.zeros((1, 4, 1, 2, 2))}
    with pytest.raises(BadInput, match="are 8: residual blocks at both ends expected; the file is damaged"):
        check(f"ltx2-vae-{half}", m, given, {})
