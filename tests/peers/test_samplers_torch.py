"""Noise against torch running, and sigmas against diffusers."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from diffusers.pipelines.flux.pipeline_flux_img2img import FluxImg2ImgPipeline
from diffusers.pipelines.stable_diffusion.pipeline_stable_diffusion_img2img import StableDiffusionImg2ImgPipeline
from diffusers.schedulers.scheduling_euler_discrete import EulerDiscreteScheduler
from hypothesis import given, settings
from hypothesis import strategies as st

from refsd.conventions.sampling import fewer, fewer_rounded_up
from refsd.samplers.levels import DiscreteLevels, scaled_linear_alphas_cumprod, training_sigmas
from refsd.samplers.noise import TorchAvx2, TorchCpu
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


SHAPES = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=1, max_size=4)
DTYPES = {
    torch.float32: np.float32,
    torch.float64: np.float64,
    torch.float16: np.float16,
    torch.bfloat16: ml_dtypes.bfloat16,
}


@settings(deadline=None)
@given(st.integers(-(2**63), 2**64 - 1), SHAPES, st.sampled_from(list(DTYPES)))
def test_torch_on_x86_to_the_bit(seed, shapes, dtype):
    rng, generator = TorchAvx2(seed), torch.Generator().manual_seed(seed)
    for shape in shapes:
        theirs = torch.randn(shape, generator=generator, dtype=dtype).double().numpy()
        mine = rng.randn(tuple(shape), DTYPES[dtype]).astype(np.float64)
        if dtype == torch.float64 and mine.size >= 16:
            np.testing.assert_array_max_ulp(mine, theirs, 2)
        else:
            np.testing.assert_array_equal(mine, theirs)


class _Pipeline:
    """As much of a pipeline as get_timesteps reads."""

    def __init__(self, steps, order):
        listed = np.repeat(np.arange(steps, 0, -1), order)[order - 1 :]
        self.scheduler = type("", (), {"timesteps": listed, "order": order})()


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize(
    ("pipeline", "rule"), [(StableDiffusionImg2ImgPipeline, fewer), (FluxImg2ImgPipeline, fewer_rounded_up)]
)
def test_diffusers_img2img(pipeline, rule, order):
    for steps in (1, 2, 9, 10, 100):
        for strength in (0.01, 0.29, 0.5, 0.7, 0.75, 0.9995, 1.0):
            bare: Any = _Pipeline(steps, order)
            left, count = pipeline.get_timesteps(bare, steps, strength, "cpu")
            mine = rule(steps, strength, lambda n: np.arange(n, -1.0, -1))
            assert len(mine) == len(np.unique(left)) + 1
            assert not len(left) or mine[0] == left[0]
            assert int(count) == len(mine) - 1 or pipeline is FluxImg2ImgPipeline
