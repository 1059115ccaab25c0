import numpy as np
import pytest
from naive import euler_ancestral as naive

from refsd.samplers.ancestral import ancestral_step
from refsd.samplers.euler import euler
from refsd.samplers.euler_ancestral import euler_ancestral
from refsd.samplers.levels import DiscreteLevels, scaled_linear_alphas_cumprod, training_sigmas
from refsd.samplers.noise import Philox, independent
from refsd.samplers.schedules import discrete, karras
from refsd.samplers.step import no_noise

LEVELS = DiscreteLevels(training_sigmas(scaled_linear_alphas_cumprod()))


def denoiser(x, sigma):
    return np.tanh(x) / (1 + sigma)


@pytest.mark.parametrize("schedule", [discrete, karras])
def test_against_naive(schedule):
    x = np.random.default_rng(1).standard_normal((2, 4, 3, 5)) * LEVELS.sigmas[-1]
    sigmas = schedule(20, LEVELS)
    y = euler_ancestral(denoiser, x, sigmas, independent(Philox(3), x.shape))
    np.testing.assert_allclose(
        y, naive.euler_ancestral(denoiser, x, sigmas, Philox(3).randn), rtol=1e-11, atol=1e-14
    )


def test_step_keeps_the_variance():
    down, up, _ = ancestral_step(3.0, 2.0)
    assert abs(down**2 + up**2 - 4) < 1e-12 and up > 0
    assert ancestral_step(3.0, 2.0, eta=0.0) == (2.0, 0.0, 1.0)
    assert ancestral_step(3.0, 0.0) == (0.0, 0.0, 1.0)


def test_no_noise_is_drawn_in_the_last_step():
    drawn = []

    class Counting(Philox):
        def randn(self, shape):
            drawn.append(shape)
            return super().randn(shape)

    x = np.ones((1, 4, 2, 2), np.float32)
    y = euler_ancestral(denoiser, x, discrete(4, LEVELS), independent(Counting(0), x.shape))
    assert drawn == [x.shape] * 3 and y.dtype == np.float32


def test_one_step_is_euler():
    x = np.full((1, 4, 2, 2), 9.0)
    sigmas = discrete(1, LEVELS)
    np.testing.assert_array_equal(euler_ancestral(denoiser, x, sigmas, no_noise), euler(denoiser, x, sigmas))
