"""Flags become tiles and circular; the decoder runs under them."""

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from refsd.circular import CircularAxes
from refsd.cli import app
from refsd.files.formats import open_weights
from refsd.models.vae.tiling import Tiling
from refsd.numerics.errors import BadInput
from refsd.pipelines.plan import resolve
from refsd.pipelines.settings import Settings, read_tiling
from refsd.pipelines.txt2img import decode, encode, sample

LATENT = np.random.default_rng(5).standard_normal((1, 4, 5, 9))


def test_flags_are_read_as_sd_cli_reads_them():
    assert read_tiling(None, None, 0.5) == Tiling()
    assert read_tiling("32x24", "0.5x2", 0.25) == Tiling(32, 24, 0.25, 0.5, 2.0)
    assert read_tiling("20", ".5", 9) == Tiling(20, 20, 9, 0.5, 0.5)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("32x", None, 0.5), "--vae-tile-size 32x: expected a number or two, 32 or 32x24"),
        (("-4", None, 0.5), "--vae-tile-size -4"),
        (("4x4x4", None, 0.5), "--vae-tile-size 4x4x4"),
        (("9" * 400, None, 0.5), "--vae-tile-size 999"),
        (("\N{ARABIC-INDIC DIGIT FOUR}", None, 0.5), "--vae-tile-size"),
        ((None, "nan", 0.5), "--vae-relative-tile-size nan: expected a number or two, 0.5 or 0.5x2"),
        ((None, "9" * 400, 0.5), "--vae-relative-tile-size 999"),
        ((None, None, float("nan")), "--vae-tile-overlap nan: expected 0 to 0.5"),
    ],
)
def test_flags_that_say_nothing(flags, says):
    with pytest.raises(BadInput) as raised:
        read_tiling(*flags)
    assert says in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.jitted
def test_tiles_are_another_picture_and_one_tile_is_the_same(sd):
    whole = decode(sd, LATENT)
    np.testing.assert_array_equal(decode(sd, LATENT, Tiling()), whole)
    tiled = decode(sd, LATENT, Tiling(4, 4))
    assert tiled.shape == whole.shape
    off = np.linalg.norm(tiled - whole) / np.linalg.norm(whole)
    assert 1e-2 < off < 1


@pytest.mark.jitted
def test_tiles_in_a_corner_see_nothing_of_the_others(sd):
    changed = LATENT.copy()
    changed[..., 4:] += 1
    before, after = (decode(sd, z, Tiling(4, 4)) for z in (LATENT, changed))
    np.testing.assert_array_equal(before[..., : 8 * 2], after[..., : 8 * 2])
    assert (before != after).any()


@pytest.mark.jitted
def test_a_latent_moved_around_in_tiles_that_wrap(sd):
    """9 latent columns in tiles of 6 that are 3 apart: moved by 3, each tile has its neighbour's place."""
    circular = CircularAxes(x=True)
    there = decode(sd, np.roll(LATENT, 3, 3), Tiling(6, 32), circular)
    want = np.roll(decode(sd, LATENT, Tiling(6, 32), circular), 24, 3)
    np.testing.assert_allclose(there, want, rtol=0, atol=1e-12)


@pytest.mark.jitted
def test_circular_reach_the_unet_and_end_with_the_picture(sd):
    settings = Settings("a cat", width=64, height=64, steps=1, cfg_scale=1, sampler="euler")
    plan = resolve(sd, settings)
    conditioning = encode(sd, plan)
    plain = sample(sd, plan, conditioning, 3)
    around = sample(sd, resolve(sd, settings._replace(circular=CircularAxes(x=True))), conditioning, 3)
    assert np.linalg.norm(around - plain) > 1e-3 * np.linalg.norm(plain)
    np.testing.assert_array_equal(sample(sd, plan, conditioning, 3), plain)
    seamless = decode(sd, plain, circular=CircularAxes(y=True))
    np.testing.assert_allclose(
        decode(sd, np.roll(plain, 3, 2), circular=CircularAxes(y=True)), np.roll(seamless, 24, 2), atol=1e-12
    )
    assert np.linalg.norm(decode(sd, plain) - seamless) > 1e-3


@pytest.mark.jitted
def test_from_the_command_line(tiny, tmp_path):
    quick = ["txt2img", "-m", tiny, "-p", "a cat", "--steps", 1, "-W", 64, "-H", 64, "--cfg-scale", 1]
    images, said = {}, {}
    for name, flags in {
        "plain": [],
        "tiled": ["--vae-tiling", "--vae-tile-size", "4x8", "--vae-tile-overlap", "0.25"],
        "circular": ["--circulary", "--vae-tiling", "--vae-relative-tile-size", "1x2"],
    }.items():
        out, taps = tmp_path / f"{name}.png", tmp_path / f"{name}.safetensors"
        result = CliRunner().invoke(app, [*map(str, [*quick, *flags, "-o", out, "--taps", taps])])
        assert result.exit_code == 0, result.output
        tensors = open_weights(taps)
        images[name] = tensors["0.latent"].values(), tensors["0.image"].values()
        with Image.open(out) as png:
            said[name] = png.text["parameters"]
    np.testing.assert_array_equal(images["tiled"][0], images["plain"][0])
    assert not np.allclose(images["tiled"][1], images["plain"][1])
    assert not np.allclose(images["circular"][0], images["plain"][0])
    assert "VAE tiles: 4x8 by 0.25" in said["tiled"] and "Circular: y" in said["circular"]
    assert "VAE tiles" not in said["plain"] and "Circular" not in said["plain"]
