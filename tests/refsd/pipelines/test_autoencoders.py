"""Encoding, by hand: the mean of an encoder's posterior or a draw from it, scaled unless asked not to."""

from typing import Any, cast

import numpy as np

from refsd.families import LatentScale
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
