"""Where a trajectory ends: what engines make of the step to 0."""

import functools
from collections.abc import Callable

import numpy as np

from refsd.samplers.latents import sampler
from refsd.samplers.parameterization import Denoiser
from refsd.samplers.step import Callback, StepNoise, no_noise


def last_denoised(solver: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """A multistep solver whose step to 0 takes denoised, and extrapolates nothing.

    Source: ComfyUI sample_lms, sample_ipndm; k-diffusion and stable-diffusion.cpp take that step as any other.
    """

    @sampler
    @functools.wraps(solver)
    def sampled(
        model: Denoiser,
        x: np.ndarray,
        sigmas: np.ndarray,
        noise: StepNoise = no_noise,
        callback: Callback | None = None,
        **options,
    ) -> np.ndarray:
        if sigmas[-1] > 0:
            return solver(model, x, sigmas, noise, callback, **options)
        x = solver(model, x, sigmas[:-1], noise, callback, **options)
        sigma = float(sigmas[-2])
        denoised = model(x, sigma)
        if callback:
            callback(len(sigmas) - 2, sigma, x, denoised)
        return denoised

    return sampled


def to_a_thousandth(solver: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """A solver that steps to 0.001 where the schedule says 0. Source: ComfyUI extra_samplers/uni_pc.py."""

    @sampler
    @functools.wraps(solver)
    def sampled(
        model: Denoiser,
        x: np.ndarray,
        sigmas: np.ndarray,
        noise: StepNoise = no_noise,
        callback: Callback | None = None,
        **options,
    ) -> np.ndarray:
        if sigmas[-1] == 0:
            sigmas = np.append(sigmas[:-1], 1e-3)
        return solver(model, x, sigmas, noise, callback, **options)

    return sampled
