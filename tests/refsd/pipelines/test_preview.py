import io

import numpy as np
import pytest
from rich.console import Console
from small_pictures import pipeline

from refsd.families import VARIANTS
from refsd.models.vae_flux2 import pack
from refsd.numerics.errors import BadInput
from refsd.pipelines.png import to_bytes
from refsd.pipelines.preview import PreviewSettings, TerminalPicture, preview, project


def test_a_projection_is_a_linear_map_of_each_latent_pixel():
    latent = np.zeros((1, 4, 2, 3))
    latent[0, 2, 1, 0] = 2.0
    rgb = project(latent, "sd")
    np.testing.assert_allclose(rgb[0, :, 0, 0], [-0.017478, -0.055834, -0.105825])
    np.testing.assert_allclose(rgb[0, :, 1, 0] - rgb[0, :, 0, 0], np.array([-0.267803, 0.237036, 0.223517]) * 2)


def test_packed_latents_give_two_pixels_a_side():
    latent = np.random.default_rng(1).normal(size=(1, 32, 4, 6))
    np.testing.assert_array_equal(project(pack(latent), "flux2"), project(latent, "flux2"))


@pytest.mark.parametrize("name", [name for name, variant in VARIANTS.items() if variant.latent_format])
def test_every_format_named_is_there(name):
    variant = VARIANTS[name]
    channels = {"sd": 4, "sdxl": 4, "flux2": 32}.get(variant.latent_format, 16)
    assert project(np.zeros((1, channels, 2, 2)), variant.latent_format).shape == (1, 3, 2, 2)


@pytest.mark.jitted
@pytest.mark.usefixtures("letters")
def test_the_methods(folder):
    pipe = pipeline(folder, "sd3")
    latent = np.random.default_rng(2).normal(size=(1, 16, 4, 5))
    small = preview(pipe, latent, PreviewSettings("proj"))
    assert small.shape == (4, 5, 3) and small.dtype == np.uint8
    whole = preview(pipe, latent, PreviewSettings("vae"))
    np.testing.assert_array_equal(whole, to_bytes(pipe.autoencoder.decode(latent)))
    with pytest.raises(BadInput, match="--preview tae: it needs a tiny autoencoder"):
        PreviewSettings("tae").check_use(pipe)
    unknown = pipe._replace(variant=pipe.variant._replace(latent_format=None))
    with pytest.raises(BadInput, match="--preview proj: no projection of Stable Diffusion 3"):
        PreviewSettings("proj").check_use(unknown)


@pytest.mark.usefixtures("letters")
def test_pixels_are_shown_as_they_are(folder):
    pipe = pipeline(folder, "chroma-radiance")
    pixels = np.linspace(-1, 1, 3 * 8 * 8).reshape(1, 3, 8, 8)
    np.testing.assert_array_equal(preview(pipe, pixels, PreviewSettings("proj")), to_bytes(pixels))


def test_settings_that_are_wrong():
    with pytest.raises(BadInput, match="--preview all: expected one of none, proj, tae, vae"):
        PreviewSettings("all").check()
    with pytest.raises(BadInput, match="--preview-interval 0: expected 1 or more"):
        PreviewSettings(interval=0).check()


def test_when_one_is_due():
    due = PreviewSettings("proj", interval=3).due
    assert [step for step in range(7) if due(step)] == [0, 3, 6]
    assert not PreviewSettings().due(0)


def test_two_pixels_a_character_on_a_terminal():
    console = Console(file=io.StringIO(), force_terminal=True, color_system="truecolor", width=80, height=30)
    assert TerminalPicture.fits(console)
    assert not TerminalPicture.fits(Console(file=io.StringIO()))
    assert not TerminalPicture.fits(Console(file=io.StringIO(), force_terminal=True, color_system="standard"))
    pixels = np.zeros((3, 2, 3), np.uint8)
    pixels[0, 1], pixels[1, 1], pixels[2, 0] = (255, 0, 0), (0, 255, 0), (1, 2, 3)
    console.print(TerminalPicture(pixels, "step 1/4"))
    shown = console.file.getvalue().splitlines()
    assert "38;2;255;0;0;48;2;0;255;0m\u2580" in shown[0] and "38;2;1;2;3;48;2;0;0;0m\u2580" in shown[1]
    assert shown[2] == "step 1/4"


def test_a_large_picture_is_shrunk_by_its_means():
    console = Console(file=io.StringIO(), force_terminal=True, color_system="truecolor", width=80, height=40)
    pixels = np.zeros((128, 128, 3), np.uint8)
    pixels[::2, ::2] = 200
    console.print(TerminalPicture(pixels))
    lines = console.file.getvalue().splitlines()
    assert lines[0].count("\u2580") == 64 // 1 and "38;2;50;50;50" in lines[0]
