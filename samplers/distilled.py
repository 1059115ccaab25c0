"""Samplers for distilled models: each step jumps to denoised and adds new noise."""

import math

import numpy as np

from refsd.kernels.combine import combine
from refsd.samplers.latents import sampler
from refsd.samplers.levels import SD_LEVELS, Levels
from refsd.samplers.parameterization import Denoiser
from refsd.samplers.step import intervals, no_callback


@sampler
def lcm(model, x, sigmas, noise, callback=no_callback):
    """Sample with LCM: x <- denoised + sigma_next n.

    sigmas: [n + 1], falling
    noise:  called once a step, except in a step to 0
    Source: Luo et al. 2023 (LCM), algorithm 3; k-diffusion's form in ComfyUI, sample_lcm.
    """
    for i, sigma, sigma_next in intervals(sigmas):
        denoised = model(x, sigma)
        callback(i, sigma, x, denoised)
        x = denoised
        if sigma_next > 0:
            x = x + sigma_next * noise(sigma, sigma_next)
    return x


def consistent(
    model: Denoiser, levels: Levels = SD_LEVELS, timestep_scaling: float = 10.0, sigma_data: float = 0.5
) -> Denoiser:
    """Wrap a model with LCM's boundary condition: at timestep 0 a consistency model returns x itself.

        c_skip x / sqrt(sigma^2 + 1) + c_out denoised
        c_skip = sigma_data^2 / (s^2 + sigma_data^2),  c_out = s / sqrt(s^2 + sigma_data^2),  s = timestep_scaling t

    levels: give the timestep t of a sigma
    c_skip is 7e-6 at timestep 19, LCM's lowest, and smaller at higher timesteps.
    Source: Luo et al. 2023 (LCM), eq. 9; diffusers LCMScheduler.get_scalings_for_boundary_condition_discrete.
    """

    def answered(x: np.ndarray, sigma: float) -> np.ndarray:
        s = timestep_scaling * levels.to_t(sigma)
        variance = s**2 + sigma_data**2
        c_skip, c_out = sigma_data**2 / variance, s / math.sqrt(variance)
        return combine((c_out, c_skip / math.sqrt(sigma**2 + 1)), (model(x, sigma), x))

    return answered


@sampler
def lcm_flow(model, x, sigmas, noise, callback=no_callback):
    """Sample a rectified flow with LCM: x <- (1 - sigma_next) denoised + sigma_next n.

    Arguments: as in lcm. Source: ComfyUI model_sampling.py, CONST.noise_scaling; stable-diffusion.cpp sample_lcm.
    """
    for i, sigma, sigma_next in intervals(sigmas):
        denoised = model(x, sigma)
        callback(i, sigma, x, denoised)
        x = denoised
        if sigma_next > 0:
            x = (1 - sigma_next) * x + sigma_next * noise(sigma, sigma_next)
    return x


@sampler
def tcd(model, x, sigmas, noise, callback=no_callback, eta=0.3, levels=SD_LEVELS):
    """Sample with TCD: jump to the lower timestep s = floor((1 - eta) t_next), then add noise up to t_next.

        x <- denoised + sigma_s d + sqrt(sigma_next^2 - sigma_s^2) n

    with d = (x - denoised) / sigma. The last step has t_next 0; its result (denoised + sigma_s d) sqrt(abar_s)
    still has noise, and has unit variance. With eta 0 this is Euler's method, except in that last step.

    sigmas: [n + 1], falling
    noise:  called once a step if eta is not 0, except in a step to 0
    levels: the model's noise levels
    Source: Zheng et al. 2024 (TCD), algorithm 2; diffusers TCDScheduler; stable-diffusion.cpp sample_tcd.
    """
    t = np.searchsorted((levels.sigmas[1:] + levels.sigmas[:-1]) / 2, sigmas)  # the nearest level
    lower = levels.sigmas[np.floor((1 - eta) * t).astype(int)].tolist()
    for i, sigma, sigma_next in intervals(sigmas):
        denoised = model(x, sigma)
        callback(i, sigma, x, denoised)
        sigma_s = lower[i + 1]
        d = (x - denoised) / sigma
        x = denoised + d * sigma_s
        if sigma_next == 0:
            x = x / math.sqrt(1 + sigma_s**2)
        elif eta > 0:
            x = x + noise(sigma, sigma_next) * math.sqrt(max(sigma_next**2 - sigma_s**2, 0.0))
    return x


@sampler
def tcd_sdcpp(model, x, sigmas, noise, callback=no_callback, eta=0.0, levels=SD_LEVELS):
    """Sample with tcd, but with eta 0 rescale x from the variance of sigma_s to that of sigma_next.

        x <- (denoised + sigma_s d) sqrt((1 + sigma_next^2) / (1 + sigma_s^2)),  eta 0

    This equals tcd if sigma_next is a level of the model; between levels x changes by up to 0.2 %.

    Arguments: as in tcd. Source: stable-diffusion.cpp sample_tcd, alpha_prod_s / alpha_prod_t_prev.
    """
    t = np.searchsorted((levels.sigmas[1:] + levels.sigmas[:-1]) / 2, sigmas)  # the nearest level
    lower = levels.sigmas[np.floor((1 - eta) * t).astype(int)].tolist()
    for i, sigma, sigma_next in intervals(sigmas):
        denoised = model(x, sigma)
        callback(i, sigma, x, denoised)
        sigma_s = lower[i + 1]
        d = (x - denoised) / sigma
        x = denoised + d * sigma_s
        if sigma_next == 0 or eta == 0:
            x = x * math.sqrt((1 + sigma_next**2) / (1 + sigma_s**2))
        else:
            x = x + noise(sigma, sigma_next) * math.sqrt(max(sigma_next**2 - sigma_s**2, 0.0))
    return x
