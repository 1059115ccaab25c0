"""Schedules, parameterization and samplers against k-diffusion, all of it in float64."""

import k_diffusion_alone
import numpy as np
import pytest
import torch
from float64_peers import float64_throughout

from refsd.samplers import SAMPLERS
from refsd.samplers.noise import Philox
from refsd.samplers.parameterization import eps_denoiser
from refsd.samplers.schedules import (
    discrete,
    karras,
    scaled_linear_alphas_cumprod,
    sigma_to_t,
    t_to_sigma,
    training_sigmas,
)

external = k_diffusion_alone.load("external")
sampling = k_diffusion_alone.load("sampling")

pytestmark = pytest.mark.peer

ALPHAS = scaled_linear_alphas_cumprod()
LEVELS = training_sigmas(ALPHAS)
THEIRS = {"euler": sampling.sample_euler, "euler_a": sampling.sample_euler_ancestral}


def network(x, t):
    """A stand-in for a UNet that NumPy and torch both can: bounded, uneven, aware of t."""
    module = torch if isinstance(x, torch.Tensor) else np
    t = t if isinstance(t, float) else t.reshape(-1, 1, 1, 1)
    return 0.9 * module.tanh(x + 0.3) + 0.1 * x * (1 + t / 999)


@pytest.fixture
def model():
    with float64_throughout():  # t_to_sigma casts t to float32
        yield external.DiscreteEpsDDPMDenoiser(network, torch.from_numpy(ALPHAS), quantize=False)


def test_levels_and_both_maps(model):
    np.testing.assert_allclose(LEVELS, model.sigmas.numpy(), rtol=1e-12)
    t = np.array([0.0, 0.5, 1.0, 417.3, 998.9, 999.0])
    sigmas = t_to_sigma(t, LEVELS)
    np.testing.assert_allclose(sigmas, model.t_to_sigma(torch.from_numpy(t)).numpy(), rtol=1e-12)
    theirs = model.sigma_to_t(torch.from_numpy(sigmas)).numpy()
    np.testing.assert_allclose([sigma_to_t(s, LEVELS) for s in sigmas], theirs, rtol=1e-12, atol=1e-10)


@pytest.mark.parametrize("n", [1, 2, 20, 33, 1000])
def test_schedules(model, n):
    np.testing.assert_allclose(discrete(n, LEVELS), model.get_sigmas(n).numpy(), rtol=1e-12)
    theirs = sampling.get_sigmas_karras(n, float(LEVELS[0]), float(LEVELS[-1])).numpy()
    np.testing.assert_allclose(karras(n, LEVELS), theirs, rtol=1e-12)


@pytest.mark.parametrize("schedule", [discrete, karras])
@pytest.mark.parametrize("name", THEIRS)
def test_trajectories(model, name, schedule):
    """20 steps, each seen from inside, on a batch of two with H != W."""
    sigmas = schedule(20, LEVELS)
    x = Philox(42).randn((2, 4, 6, 5)).astype(np.float64) * sigmas[0]
    mine, theirs = [], []
    denoiser = eps_denoiser(network, LEVELS)
    y = SAMPLERS[name](denoiser, x, sigmas, Philox(7), lambda i, sigma, x, denoised: mine.append((x, denoised)))
    stream = Philox(7)
    fresh = {"noise_sampler": lambda sigma, sigma_next: torch.from_numpy(stream.randn(x.shape)).double()}
    z = THEIRS[name](
        model,
        torch.from_numpy(x),
        torch.from_numpy(sigmas),
        callback=lambda step: theirs.append((step["x"].clone().numpy(), step["denoised"].numpy())),
        disable=True,
        **(fresh if name == "euler_a" else {}),
    ).numpy()
    for (x_mine, d_mine), (x_theirs, d_theirs) in zip(mine, theirs, strict=True):
        assert np.linalg.norm(x_mine - x_theirs) <= 1e-12 * np.linalg.norm(x_theirs)
        assert np.linalg.norm(d_mine - d_theirs) <= 1e-10 * np.linalg.norm(d_theirs)
    assert np.linalg.norm(y - z) <= 1e-10 * np.linalg.norm(z)
