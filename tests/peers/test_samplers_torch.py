"""Noise against torch running, and sigmas against diffusers."""

import numpy as np
import pytest
import torch
from diffusers import EulerDiscreteScheduler

from refsd.samplers.levels import DiscreteLevels, scaled_linear_alphas_cumprod, training_sigmas
from refsd.samplers.noise import TorchCpu
from refsd.samplers.schedules import discrete, karras

pytestmark = [
    pytest.mark.peer,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # diffusers's own
]


@pytest.mark.parametrize("seed", [0, 1, 42, 2**31, 2**32 - 1, 2**40 + 7])
def test_torch_cpu_normals(seed):
    """The integers agree: so do the normals, up to torch's vectorised log, sin and cos: <= 3 ULP."""
    rng, generator = TorchCpu(seed), torch.Generator().manual_seed(seed)
    for shape in [(1, 4, 64, 64), (15,), (1,), (16,), (3, 7), (1, 4, 9, 7), (2, 3), (20_000,)]:
        mine, theirs = rng.randn(shape), torch.randn(shape, generator=generator).numpy()
        ulps = np.abs(mine.astype(np.float64) - theirs) / np.spacing(np.abs(theirs))
        assert ulps.max() <= (3 if mine.size >= 16 else 0), shape


@pytest.mark.parametrize("use_karras", [False, True])
@pytest.mark.parametrize("n", [4, 28, 1000])
def test_diffusers_sigmas(n, use_karras):
    """It interpolates sigma, k-diffusion log sigma: the same at these n, where 999 / (n - 1) is whole."""
    theirs = EulerDiscreteScheduler(
        beta_start=0.00085,
        beta_end=0.012,
        beta_schedule="scaled_linear",
        timestep_spacing="linspace",
        use_karras_sigmas=use_karras,
    )
    theirs.set_timesteps(n)
    levels = DiscreteLevels(training_sigmas(scaled_linear_alphas_cumprod()))
    mine = (karras if use_karras else discrete)(n, levels)
    np.testing.assert_allclose(mine, theirs.sigmas.numpy(), rtol=2e-5)  # its alphas_cumprod are float32
