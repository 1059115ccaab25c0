import numpy as np
import pytest

from refsd.samplers.levels import (
    DiscreteLevels,
    EdmLevels,
    FlowLevels,
    scaled_linear_alphas_cumprod,
    training_sigmas,
)
from refsd.samplers.parameterization import EPS, FLOW, PREDICTIONS, X0, V, denoiser, edm

LEVELS = DiscreteLevels(training_sigmas(scaled_linear_alphas_cumprod()))
RNG = np.random.default_rng(0)
DATA, NOISE = RNG.standard_normal((2, 1, 4, 3, 5))


def answers(prediction, sigma: float):
    """What a perfect network gives, when asked for eps, v, x0 or velocity."""
    abar = 1 / (1 + sigma**2)
    return {
        "eps": NOISE,
        "v": np.sqrt(abar) * NOISE - np.sqrt(1 - abar) * DATA,
        "x0": DATA,
        "flow": NOISE - DATA,
    }[prediction.name]


@pytest.mark.parametrize("prediction", [EPS, V, X0])
def test_a_perfect_network_denoises_exactly(prediction):
    """x = x0 + sigma eps; the network sees what DDPM would: sqrt(abar) x0 + sqrt(1 - abar) eps, at t."""
    t = 417.25
    sigma = float(LEVELS.to_sigma(t))
    abar = 1 / (1 + sigma**2)

    def network(x, seen_t):
        np.testing.assert_allclose(x, np.sqrt(abar) * DATA + np.sqrt(1 - abar) * NOISE, rtol=1e-12)
        assert abs(seen_t - t) < 1e-9
        return answers(prediction, sigma)

    y = denoiser(network, LEVELS, prediction)(DATA + sigma * NOISE, sigma)
    np.testing.assert_allclose(y, DATA, atol=1e-14)


@pytest.mark.parametrize(("multiplier", "told"), [(1000.0, 300.0), (1.0, 0.3)])
def test_flow(multiplier, told):
    """x = (1 - sigma) x0 + sigma eps goes in as it is."""
    x = 0.7 * DATA + 0.3 * NOISE

    def network(seen, t):
        assert seen is x and abs(t - told) < 1e-12
        return answers(FLOW, 0.3)

    y = denoiser(network, FlowLevels(3.0, multiplier), FLOW)(x, 0.3)
    np.testing.assert_allclose(y, DATA, atol=1e-14)


@pytest.mark.parametrize("sigma_data", [0.5, 1.0])
def test_edm(sigma_data):
    """The network's target has unit variance, whatever the noise: that is what the scalings are for."""
    rng = np.random.default_rng(1)
    x0, eps = rng.standard_normal((2, 200_000)) * [[sigma_data], [1.0]]
    for sigma in (0.01, 0.5, 30.0):
        c_skip, c_out, c_in = edm(sigma_data).scalings(sigma)
        x = x0 + sigma * eps
        assert abs((c_in * x).std() - 1) < 0.01
        assert abs(((x0 - c_skip * x) / c_out).std() - 1) < 0.01
        assert abs(EdmLevels().to_t(sigma) - np.log(sigma) / 4) < 1e-15


def test_float32_stays_float32():
    x = np.ones((1, 4, 2, 2), np.float32)
    for prediction in PREDICTIONS.values():
        assert denoiser(lambda x, t: x, LEVELS, prediction)(x, 2.5).dtype == np.float32
