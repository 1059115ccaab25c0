"""MiniMax-H3's autoencoder against answers recorded from diffusers in float64, and what must hold besides."""

import json
from pathlib import Path

import numpy as np
import pytest
import tiny_vae_minimax_h3 as tiny
from safetensors.numpy import save_file
from tiny_models import sampled
from typer.testing import CliRunner

from refsd.cli import app
from refsd.components import check
from refsd.models.vae_minimax_h3 import (
    axis,
    clips_of,
    decode,
    encode,
    faded,
    frames_of,
    latent_clips,
    mirrored,
    unpatch,
)
from refsd.models.vae_minimax_h3.network import HEADS, MINIMAX_H3_VAE, minimax_h3_vae_keymap, minimax_h3_vae_size
from refsd.models.vae_minimax_h3.tiles import tiles
from refsd.module import Module
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT64, PROFILES
from refsd.numerics.tensor import stored
from refsd.weights import open_checkpoint

RECORDED = np.load(Path(__file__).parents[2] / "fixtures" / "vae_minimax_h3.npz")
WEIGHTS = tiny.weights()
STATISTICS = {"latents_mean": tiny.MEAN, "latents_std": tiny.STD}
# What a profile may be away from the truth: a few times what it measures here.
AWAY = {"float32": 1e-5, "torch-f16": 3e-2, "torch-bf16": 1e-1, "ggml-cpu": 6e-3}


def run(frames, numerics=FLOAT64):
    m, given = Module(WEIGHTS, Arithmetic(numerics)), tiny.inputs(frames)
    mean, logvar = encode(m, m.store(given["x"]), **STATISTICS, **tiny.TILES)
    return {"mean": mean, "logvar": logvar, "out": decode(m, m.store(given["z"]), **STATISTICS, **tiny.TILES)}


def distance(got, want):
    return np.linalg.norm(np.asarray(got, np.float64) - want) / np.linalg.norm(want)


@pytest.mark.jitted
@pytest.mark.parametrize("frames", tiny.FRAMES)
def test_the_recorded_answers_of_diffusers(frames):
    answer = run(frames)
    assert sorted(RECORDED.files) == sorted([*(f"{n}/{part}" for n in tiny.FRAMES for part in answer), "about"])
    for part, y in answer.items():
        assert distance(sampled(y), RECORDED[f"{frames}/{part}"]) <= 1e-12, part


@pytest.mark.jitted
@pytest.mark.parametrize("profile", AWAY)
def test_every_profile_runs_near_the_truth(profile):
    for part, y in run(1, PROFILES[profile]).items():
        assert y.dtype == PROFILES[profile].storage_dtype
        assert 0 < distance(sampled(y), RECORDED[f"1/{part}"]) <= AWAY[profile], part


def test_clips_of_a_video_and_of_its_latent():
    """17 frames each, of which the last is filled; seven latents each, of which two are the next clip's first."""
    x = np.arange(40.0).reshape(1, 1, 40, 1, 1)
    assert [clip.ravel().tolist() for clip in clips_of(x)] == [
        [*range(17)],
        [*range(17, 34)],
        [*range(34, 40), *[39] * 11],
    ]
    assert [clip.ravel().tolist() for clip in latent_clips(x[:, :, :8])] == [
        [0, 1, 2, 3, 4, 5, 6],
        [5, 6, 7, 7, 7, 7, 7],
    ]
    assert [clip.ravel().tolist() for clip in latent_clips(x[:, :, :2])] == [[0, 1, 1, 1, 1, 1, 1]]
    assert len(clips_of(x[:, :, :1])) == len(latent_clips(x[:, :, :1])) == 1


def test_frames_of_latents():
    assert [frames_of(F) for F in (1, 2, 3, 6, 7, 12)] == [1, 5, 9, 18, 22, 39]


def test_tiles_share_what_is_too_much_in_turn():
    assert tiles(256, 256, 64, 16) == ([(0, 256)], [])
    places, overlaps = tiles(480, 256, 64, 16)
    assert places == [(0, 256), (112, 368), (224, 480)] and overlaps == [144, 144]
    places, overlaps = tiles(864, 256, 64, 16)
    assert overlaps == [112, 96, 96, 112][: len(overlaps)] or sum(overlaps) == 256 * len(places) - 864
    assert min(overlaps) >= 64 and places[-1][1] == 864
    with pytest.raises(
        BadInput, match="tiles of 64 pixels that share 64: expected an overlap below the tile's side"
    ):
        tiles(80, 64, 64, 16)


def test_the_second_of_two_tiles_is_faded_in():
    a, b = np.zeros((1, 1, 1, 1, 6)), np.ones((1, 1, 1, 1, 5))
    assert faded(Module({}), a, b, 4, 4).ravel().tolist() == [0, 0.25, 0.5, 0.75, 1]


def test_edges_are_mirrored_and_positions_are_centres():
    x = np.arange(4.0).reshape(1, 1, 1, 1, 4)
    assert mirrored(x, 4, 1, 1).ravel().tolist() == [1, 0, 1, 2, 3, 2]
    assert mirrored(x, 4, 0, 1).ravel().tolist() == [0, 1, 2, 3, 2]
    assert axis(4).tolist() == [-0.75, -0.25, 0.25, 0.75]


def test_pixels_of_a_token_are_frames_rows_and_columns_of_each_colour():
    y = np.arange(2 * 3072.0).reshape(1, 2, 3072)
    video = unpatch(y, 1, 1, 2)
    assert video.shape == (1, 3, 4, 16, 32)
    assert video[0, 2, 3, 5, 16 + 7] == 3072 + 2 * 1024 + 3 * 256 + 5 * 16 + 7


def diffusers_file():
    return minimax_h3_vae_keymap(2, 1).write(WEIGHTS)


def test_the_keymap_goes_there_and_back():
    there = diffusers_file()
    sources, unread = minimax_h3_vae_keymap(2, 1).sources(there)
    assert not unread and set(sources) == set(WEIGHTS)
    for ours, source in sources.items():
        np.testing.assert_array_equal(source.read(there).values(), WEIGHTS[ours].values())


def test_q_k_and_v_follow_each_other_head_by_head():
    """Two heads of 64: the second head's k is the fifth of six parts here, and the second half of k there."""
    rows = np.arange(384.0)[:, None] * np.ones(2)
    q, k, v = HEADS.split(stored(rows), [128] * 3)
    assert k.values()[:, 0].tolist() == [*range(64, 128), *range(256, 320)]
    np.testing.assert_array_equal(HEADS.join([q, k, v]).values(), rows)
    with pytest.raises(BadInput, match="189 rows are no q, k and v of whole heads of 64"):
        HEADS.join([stored(np.zeros((63, 2)))] * 3)


@pytest.mark.parametrize("layout", ["original", "diffusers"])
@pytest.mark.parametrize("prefix", ["", "vae."])
@pytest.mark.parametrize("half", ["", "encoder.", "decoder."])
def test_info_of_every_layout(tmp_path, layout, prefix, half):
    """MiniMax's files have a token of masked training too."""
    weights = WEIGHTS if layout == "original" else diffusers_file()
    arrays = {name: np.ascontiguousarray(w.values()) for name, w in weights.items() if name.startswith(half)}
    if layout == "original":
        arrays["decoder.mask_token"] = np.zeros((1, 1, 64), np.float32)
    save_file({prefix + name: array for name, array in arrays.items()}, tmp_path / "a.safetensors")
    said = CliRunner().invoke(app, ["info", str(tmp_path / "a.safetensors"), "--json"])
    read = json.loads(said.output)
    assert read["components"].keys() == {"minimax-h3-vae"}
    assert not read["components"]["minimax-h3-vae"]["unused"] and not read["unknown"]
    assert bool(read["components"]["minimax-h3-vae"]["missing"]) == bool(half)


@pytest.mark.parametrize("half", ["encoder.", "decoder."])
def test_one_half_tells_the_size(half):
    shapes = {name: w.shape for name, w in WEIGHTS.items() if name.startswith(half)}
    encoder, usual = ("widths", "res_blocks"), minimax_h3_vae_size({})
    of_this = [field for field in tiny.SIZE._fields if (field in encoder) == (half == "encoder.")]
    want = usual._replace(**{field: getattr(tiny.SIZE, field) for field in [*of_this, "latent_channels"]})
    assert minimax_h3_vae_size(shapes) == want


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("clip_length", 21),
        ("temporal_downsample_factors", [2, 2, 1, 1, 1, 1]),
        ("decoder_attention_head_dim", 128),
        ("spatial_padding_mode", "zeros"),
    ],
)
def test_a_config_of_another_network_is_refused(tmp_path, field, value):
    place = tmp_path / "vae"
    place.mkdir()
    save_file({n: np.ascontiguousarray(w.values()) for n, w in diffusers_file().items()}, place / "a.safetensors")
    assert MINIMAX_H3_VAE.folder is not None
    config = {**MINIMAX_H3_VAE.folder.config(tiny.SIZE), **STATISTICS}
    (place / "a.safetensors").rename(place / MINIMAX_H3_VAE.folder.file)
    (place / "config.json").write_text(json.dumps(config))
    assert open_checkpoint(tmp_path).components["minimax-h3-vae"].config["latents_std"] == tiny.STD
    (place / "config.json").write_text(json.dumps({**config, field: value}))
    with pytest.raises(BadInput, match=field):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("name", "shape", "params", "match"),
    [
        ("encoder", (1, 4, 1, 32, 32), {}, "C is 4, the model takes 3"),
        ("encoder", (1, 3, 1, 32, 40), {}, "W is 40, the model takes a multiple of 16, at least 32"),
        ("encoder", (1, 3, 1, 16, 32), {}, "H is 16, the model takes a multiple of 16, at least 32"),
        ("encoder", (1, 3, 32, 32), {}, r"expected \[N, C, F, H, W\]"),
        ("encoder", (1, 3, 1, 32, 32), {"tile": 16}, "tile is 16, the model takes a multiple of 16, at least 32"),
        ("decoder", (1, 4, 1, 2, 2), {"overlap": 8}, "overlap is 8, the model takes a multiple of 16"),
        ("decoder", (1, 4, 1, 2, 2), {}, "Z is 4, the model takes 3"),
    ],
)
def test_what_does_not_fit_is_refused(name, shape, params, match):
    given = {"x" if name == "encoder" else "z": np.zeros(shape)}
    with pytest.raises(BadInput, match=match):
        check(f"minimax-h3-vae-{name}", Module(WEIGHTS), given, STATISTICS | params)


@pytest.mark.parametrize(
    ("tensor", "shape", "match"),
    [
        ("decoder.proj_out.weight", (3000, 64), "has 3000 rows: a latent is 4 frames of 3 x 16 x 16"),
        ("decoder.transformer_blocks.0.attn.to_out.weight", (65, 64), "whole heads of 64 channels"),
    ],
)
def test_damaged_weights_are_refused(tensor, shape, match):
    m = Module(WEIGHTS | {tensor: stored(np.zeros(shape, np.float32))})
    with pytest.raises(BadInput, match=match):
        check("minimax-h3-vae-decoder", m, {"z": np.zeros((1, 3, 1, 2, 2))}, STATISTICS)


def test_an_encoder_without_a_level_is_refused():
    m = Module({name: w for name, w in WEIGHTS.items() if not name.startswith("encoder.down.5.")})
    with pytest.raises(BadInput, match="the encoder has 5 levels: refsd computes 6; the file is damaged"):
        check("minimax-h3-vae-encoder", m, {"x": np.zeros((1, 3, 1, 32, 32))}, STATISTICS)
