"""Wrap solvers with the ways in which engines take the step to 0."""

import functools
from collections.abc import Callable

import numpy as np

from refsd.samplers.latents import sampler
from refsd.samplers.step import no_callback, no_noise


def last_denoised(solver: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """Wrap a multistep solver so that its step to 0 returns denoised, without extrapolation.

    Source: ComfyUI sample_lms, sample_ipndm. k-diffusion and stable-diffusion.cpp do not treat that step specially.
    """

    @sampler
    @functools.wraps(solver)
    def sampled(model, x, sigmas, noise=no_noise, callback=no_callback, **options):
        if sigmas[-1] > 0:
            return solver(model, x, sigmas, noise, callback, **options)
        x = solver(model, x, sigmas[:-1], noise, callback, **options)
        sigma = float(sigmas[-2])
        denoised = model(x, sigma)
        callback(len(sigmas) - 2, sigma, x, denoised)
        return denoised

    return sampled


def to_a_thousandth(solver: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """Wrap a solver so that it steps to 0.001 instead of 0. Source: ComfyUI extra_samplers/uni_pc.py."""

    @sampler
    @functools.wraps(solver)
    def sampled(model, x, sigmas, noise=no_noise, callback=no_callback, **options):
        if sigmas[-1] == 0:
            sigmas = np.append(sigmas[:-1], 1e-3)
        return solver(model, x, sigmas, noise, callback, **options)

    return sampled
