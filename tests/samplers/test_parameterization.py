import numpy as np

from refsd.samplers.parameterization import eps_denoiser, guide
from refsd.samplers.schedules import scaled_linear_alphas_cumprod, t_to_sigma, training_sigmas

LEVELS = training_sigmas(scaled_linear_alphas_cumprod())


def test_a_network_that_knows_the_noise_denoises_exactly():
    """x = x0 + sigma eps; the network sees what DDPM would: sqrt(abar) x0 + sqrt(1 - abar) eps, at t."""
    rng = np.random.default_rng(0)
    x0, eps = rng.standard_normal((2, 1, 4, 3, 5))
    t = 417.25
    sigma = float(t_to_sigma(t, LEVELS))
    abar = 1 / (1 + sigma**2)

    def network(x, seen_t):
        np.testing.assert_allclose(x, np.sqrt(abar) * x0 + np.sqrt(1 - abar) * eps, rtol=1e-12)
        assert abs(seen_t - t) < 1e-9
        return eps

    np.testing.assert_allclose(eps_denoiser(network, LEVELS)(x0 + sigma * eps, sigma), x0, atol=1e-14)


def test_float32_stays_float32():
    x = np.ones((1, 4, 2, 2), np.float32)
    assert eps_denoiser(lambda x, t: x, LEVELS)(x, 2.5).dtype == np.float32
    assert guide(x, x, 7.0).dtype == np.float32


def test_guidance_moves_away_from_uncond():
    assert guide(np.array(3.0), np.array(1.0), 7.0) == 15.0
    assert guide(np.array(3.0), np.array(1.0), 1.0) == 3.0
    assert guide(np.array(3.0), np.array(1.0), 0.0) == 1.0
