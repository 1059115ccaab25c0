import numpy as np
import pytest
from naive import euler as naive

from refsd.samplers.euler import euler
from refsd.samplers.levels import DiscreteLevels, scaled_linear_alphas_cumprod, training_sigmas
from refsd.samplers.schedules import discrete, karras

LEVELS = DiscreteLevels(training_sigmas(scaled_linear_alphas_cumprod()))
MU, S = 0.4, 0.7


def gaussian(x, sigma):
    """The exact denoiser of data ~ N(MU, S^2)."""
    return (sigma**2 * MU + S**2 * x) / (S**2 + sigma**2)


@pytest.mark.smoke
def test_against_naive():
    x = np.random.default_rng(1).standard_normal((2, 4, 3, 5)) * LEVELS.sigmas[-1]
    for sigmas in (discrete(20, LEVELS), karras(20, LEVELS)):
        np.testing.assert_allclose(euler(gaussian, x, sigmas), naive.euler(gaussian, x, sigmas), rtol=1e-12)


@pytest.mark.smoke
def test_converges_to_the_exact_solution_in_first_order():
    """The flow of gaussian data is known: x - MU shrinks as sqrt(S^2 + sigma^2)."""
    x = np.array([20.0])
    exact = MU + (x - MU) * S / np.sqrt(S**2 + LEVELS.sigmas[-1] ** 2)
    errors = [abs(euler(gaussian, x, karras(n, LEVELS)) - exact).item() for n in (50, 100, 200)]
    assert errors[2] < 2e-2
    assert 1.7 < errors[0] / errors[1] < 2.3 and 1.7 < errors[1] / errors[2] < 2.3


def test_callback_hears_every_step_before_it():
    heard = []
    sigmas = discrete(4, LEVELS)
    x = np.ones((1, 4, 2, 2), np.float32)
    y = euler(gaussian, x, sigmas, callback=lambda i, sigma, x, denoised: heard.append((i, sigma, x, denoised)))
    assert [i for i, *_ in heard] == [0, 1, 2, 3]
    assert [sigma for _, sigma, *_ in heard] == list(sigmas[:-1])
    np.testing.assert_array_equal(heard[0][2], x)
    np.testing.assert_allclose(heard[-1][3], y, rtol=1e-5)  # the last step goes all the way
    assert y.dtype == np.float32
