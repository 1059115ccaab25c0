"""Every kind of autoencoder, whole, tiled and seamless, against answers recorded from diffusers in float64."""

from pathlib import Path

import numpy as np
import pytest
import tiny_vae as tiny
from tiny_models import sampled

from refsd.circular import CircularAxes
from refsd.models.vae import decode, encode
from refsd.models.vae.tiling import tiled_diffusers
from refsd.module import Module
from refsd.numerics.errors import BadInput

RECORDED = np.load(Path(__file__).parents[2] / "fixtures" / "vae.npz")
GIVEN = tiny.inputs()


def halves(kind, circular=None):
    m = Module(tiny.weights(kind), circular=circular)
    return (
        lambda x: np.concatenate(encode(m, x, tiny.GROUPS), axis=1),
        lambda z: decode(m, z, tiny.GROUPS),
    )


def assert_recorded(name, moments, out):
    for part, y in (("moments", moments), ("out", out)):
        want = RECORDED[f"{name}/{part}"]
        assert np.linalg.norm(sampled(y) - want) <= 1e-12 * np.linalg.norm(want), part


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_what_a_checkpoint_lacks_is_left_out(kind):
    moments, picture = halves(kind)
    assert_recorded(kind, moments(GIVEN["x"]), picture(GIVEN["z"]))


@pytest.mark.parametrize("name", tiny.TILINGS)
def test_tiled_as_diffusers_does(name):
    size, overlap = tiny.TILINGS[name]
    moments, picture = halves("flux")
    assert_recorded(
        f"tiled {name}",
        tiled_diffusers(moments, GIVEN["x"], size, size // 2, overlap),
        tiled_diffusers(picture, GIVEN["z"], size // 2, size, overlap),
    )


@pytest.mark.parametrize("name", tiny.SEAMS)
def test_seamless(name):
    moments, picture = halves("sd", CircularAxes(*tiny.SEAMS[name]))
    assert_recorded(f"seamless {name}", moments(GIVEN["x"]), picture(GIVEN["z"]))


def test_a_picture_smaller_than_one_pixel_of_the_latent():
    with pytest.raises(BadInput, match="x is 1 x 9 pixels, these weights take at least 2"):
        halves("flux")[0](np.zeros((1, 3, 1, 9)))
