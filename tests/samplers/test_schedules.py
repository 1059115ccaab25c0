import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from naive import schedules as naive

from refsd.samplers.schedules import (
    SCHEDULES,
    discrete,
    karras,
    scaled_linear_alphas_cumprod,
    sigma_to_t,
    t_to_sigma,
    training_sigmas,
)

LEVELS = training_sigmas(scaled_linear_alphas_cumprod())


def test_levels_of_stable_diffusion():
    np.testing.assert_allclose(LEVELS, naive.training_sigmas(), rtol=1e-12)
    np.testing.assert_allclose(LEVELS[[0, -1]], [0.02916715815, 14.6146412293], rtol=1e-9)


@pytest.mark.parametrize("n", [2, 4, 20, 999, 1000, 1500])
def test_discrete_against_naive(n):
    t = [999 * (n - 1 - i) / (n - 1) for i in range(n)]
    expected = [naive.t_to_sigma(u, naive.training_sigmas()) for u in t] + [0.0]
    np.testing.assert_allclose(discrete(n, LEVELS), expected, rtol=1e-12)


@pytest.mark.parametrize("n", [2, 4, 20, 100])
def test_karras_against_naive(n):
    np.testing.assert_allclose(karras(n, LEVELS), naive.karras(n, LEVELS[0], LEVELS[-1]), rtol=1e-12)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("n", [1, 2, 5, 50])
def test_every_schedule_falls_from_the_largest_level_to_zero(name, n):
    sigmas = SCHEDULES[name](n, LEVELS)
    assert sigmas.dtype == np.float64 and sigmas.shape == (n + 1,)
    np.testing.assert_allclose(sigmas[0], LEVELS[-1], rtol=1e-12)
    assert (np.diff(sigmas) < 0).all() and sigmas[-1] == 0
    if n > 1:
        np.testing.assert_allclose(sigmas[-2], LEVELS[0], rtol=1e-12)


@given(st.floats(0, 999))
def test_t_comes_back_from_its_sigma(t):
    assert abs(sigma_to_t(t_to_sigma(t, LEVELS), LEVELS) - t) < 1e-9


def test_t_is_clamped_to_the_levels():
    assert sigma_to_t(1e-3, LEVELS) == 0 and sigma_to_t(100.0, LEVELS) == 999


def test_stated_distance_of_float32_levels():
    """The docstring's figures, with stable-diffusion.cpp's loop in float32."""
    f = np.float32
    low, high = np.sqrt(f(0.00085)), np.sqrt(f(0.012))
    kept, levels = f(1), []
    for i in range(1000):
        beta = (low + (high - low) * (f(i) / f(999))) ** 2
        kept = kept * (f(1) - beta)
        levels.append(np.sqrt((f(1) - kept) / kept))
    error = np.abs(np.array(levels) / LEVELS - 1)
    assert 1.2e-5 < error.max() < 1.4e-5
    assert error[-1] < 1.1e-6
