"""Decoding and encoding, by hand: a picture's range and size; a posterior's mean or a draw, scaled or not."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from refsd.models.vae.latents import LatentScale
from refsd.models.vae.tiling import Tiling
from refsd.pipelines.autoencoders import Autoencoder

MEAN = np.array([[[[0.5, -2.0], [1.0, 3.0]]]])
LOGVAR = np.array([[[[0.0, -100.0], [2.0, 50.0]]]])
PICTURE = np.zeros((1, 3, 16, 16))


class Encoder:
    """Gives the same answer to every picture."""

    dtype = np.dtype(np.float64)

    def __init__(self, **answer: np.ndarray):
        self.answer = answer

    def __call__(self, inputs, name):
        return self.answer


def autoencoder(**answer: np.ndarray) -> Autoencoder:
    scale = LatentScale(0.5, 0.25, "test")
    return Autoencoder(cast(Any, Encoder(**answer)), None, 8, scale)


class Decoder:
    """Repeats each latent's first channel `side` times along a side, in three colours."""

    dtype = np.dtype(np.float64)

    def __init__(self, name: str, side: int):
        self.name, self.side, self.module = name, side, SimpleNamespace(circular=None)

    def __call__(self, inputs, name):
        z = inputs["z"]
        return {"out": np.repeat(z[:, :1].repeat(self.side, axis=2).repeat(self.side, axis=3), 3, axis=1)}


@pytest.mark.parametrize("tiling", [None, Tiling(relative_x=2.0, relative_y=2.0)], ids=["whole", "tiles"])
@pytest.mark.parametrize(
    ("name", "packed"), [("vae-decoder", False), ("tae-decoder", False), ("flux2-vae-decoder", True)]
)
def test_a_picture_is_from_minus_one_to_one(name, packed, tiling):
    """A tiny decoder's is from 0 to 1 before; what is packed is decoded at twice the side."""
    z = np.full((1, 4, 32, 48), 0.25)
    side = 4 if packed else 8
    picture = Autoencoder(None, cast(Any, Decoder(name, side)), 8, None, packed).decode(z, tiling)
    assert picture.shape == (1, 3, 256, 384)
    np.testing.assert_allclose(picture, -0.5 if name == "tae-decoder" else 0.25, rtol=1e-6)


def test_the_mean_is_scaled_unless_asked_not_to():
    vae = autoencoder(mean=MEAN, logvar=LOGVAR)
    np.testing.assert_allclose(vae.encode(PICTURE), (MEAN - 0.25) * 0.5, rtol=1e-15)
    np.testing.assert_array_equal(vae.encode(PICTURE, scaled=False), MEAN)


def test_a_draw_has_the_posterior_s_deviation():
    """exp(logvar / 2), its logvar between -30 and 20; an encoder without one gives its mean."""
    normal = np.array([[[[1.0, 1.0], [-1.0, 2.0]]]])
    deviation = np.exp([[[[0.0, -15.0], [1.0, 10.0]]]])
    drawn = autoencoder(mean=MEAN, logvar=LOGVAR).encode(PICTURE, lambda shape: normal, scaled=False)
    np.testing.assert_allclose(drawn, MEAN + deviation * normal, rtol=1e-15)
    plain = autoencoder(mean=MEAN).encode(PICTURE, lambda shape: normal, scaled=False)
    np.testing.assert_array_equal(plain, MEAN)


def test_an_autoencoder_with_alpha_takes_a_picture_as_opaque():
    seen = []

    def encoder(inputs, name):
        seen.append(inputs["x"])
        return {"mean": MEAN}

    encoder.dtype = np.dtype(np.float64)  # pyright: ignore[reportFunctionMemberAccess]
    vae = Autoencoder(cast(Any, encoder), None, 8, alpha=True)
    vae.encode(PICTURE)
    vae.encode(np.zeros((1, 4, 16, 16)))
    np.testing.assert_array_equal(seen[0][:, :3], PICTURE)
    assert (seen[0][:, 3] == 1).all()
    assert (seen[1] == 0).all()
