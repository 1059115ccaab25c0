"""Samplers of distilled models, which jump to denoised and noise it anew."""

import math

import numpy as np

from refsd.kernels.combine import combine
from refsd.samplers.ancestral import NONE
from refsd.samplers.levels import SD_LEVELS, Levels
from refsd.samplers.parameterization import Denoiser
from refsd.samplers.step import Callback, StepNoise, intervals


def lcm(
    model: Denoiser, x: np.ndarray, sigmas: np.ndarray, noise: StepNoise, callback: Callback | None = None
) -> np.ndarray:
    """x <- denoised + sigma_next n.

    x:      latents at sigmas[0]
    sigmas: [n + 1], falling
    noise:  drawn from once a step, not where the next sigma is 0
    -> latents at sigmas[-1], dtype of x
    Source: Luo et al. 2023 (LCM), algorithm 3; k-diffusion's form in ComfyUI, sample_lcm.
    """
    for i, sigma, sigma_next in intervals(sigmas):
        denoised = model(x, sigma)
        if callback:
            callback(i, sigma, x, denoised)
        x = denoised
        if sigma_next > 0:
            x = combine(1.0, denoised, sigma_next, noise(sigma, sigma_next))
    return x


def lcm_flow(
    model: Denoiser, x: np.ndarray, sigmas: np.ndarray, noise: StepNoise, callback: Callback | None = None
) -> np.ndarray:
    """lcm for a rectified flow: x <- (1 - sigma_next) denoised + sigma_next n.

    Arguments: lcm's. Source: ComfyUI model_sampling.py, CONST.noise_scaling; stable-diffusion.cpp sample_lcm.
    """
    for i, sigma, sigma_next in intervals(sigmas):
        denoised = model(x, sigma)
        if callback:
            callback(i, sigma, x, denoised)
        x = denoised
        if sigma_next > 0:
            x = combine(1 - sigma_next, denoised, sigma_next, noise(sigma, sigma_next))
    return x


def tcd(
    model: Denoiser,
    x: np.ndarray,
    sigmas: np.ndarray,
    noise: StepNoise,
    callback: Callback | None = None,
    eta: float = 0.3,
    levels: Levels = SD_LEVELS,
) -> np.ndarray:
    """Trajectory consistency: a jump to the lower timestep s = floor((1 - eta) t_next), and noise up to t_next.

        x <- denoised + sigma_s d + sqrt(sigma_next^2 - sigma_s^2) n

    The last step has t_next 0: what it leaves is still noisy, and of unit variance: (denoised + sigma_s d) times
    sqrt(abar_s). At eta 0 it is Euler's method, but for that last step.

    x:      latents at sigmas[0]
    sigmas: [n + 1], falling
    noise:  drawn from once a step where eta is not 0, not where the next sigma is 0
    levels: the model's
    -> latents at sigmas[-1], dtype of x
    Source: Zheng et al. 2024 (TCD), algorithm 2; diffusers TCDScheduler; stable-diffusion.cpp sample_tcd.
    """
    t = np.searchsorted((levels.sigmas[1:] + levels.sigmas[:-1]) / 2, sigmas)  # the nearest level
    lower = levels.sigmas[np.floor((1 - eta) * t).astype(int)].tolist()
    for i, sigma, sigma_next in intervals(sigmas):
        denoised = model(x, sigma)
        if callback:
            callback(i, sigma, x, denoised)
        # denoised + d sigma_s,  d = (x - denoised) / sigma
        sigma_s = lower[i + 1]
        ratio = sigma_s / sigma
        if sigma_next == 0:
            scale = 1 / math.sqrt(1 + sigma_s**2)
            x = combine(scale * ratio, x, scale * (1 - ratio), denoised)
        else:
            up = math.sqrt(max(sigma_next**2 - sigma_s**2, 0.0))
            up, n = (up, noise(sigma, sigma_next)) if eta > 0 else NONE
            x = combine(ratio, x, 1 - ratio, denoised, up, n)
    return x


def tcd_sdcpp(
    model: Denoiser,
    x: np.ndarray,
    sigmas: np.ndarray,
    noise: StepNoise,
    callback: Callback | None = None,
    eta: float = 0.0,
    levels: Levels = SD_LEVELS,
) -> np.ndarray:
    """tcd, but that without noise x is brought from the variance of sigma_s to that of sigma_next.

        x <- (denoised + sigma_s d) sqrt((1 + sigma_next^2) / (1 + sigma_s^2)),  eta 0

    The two are one where sigma_next is a level of the model; between levels x shrinks or swells by up to 0.2 %.

    Arguments: tcd's. Source: stable-diffusion.cpp sample_tcd, alpha_prod_s / alpha_prod_t_prev.
    """
    t = np.searchsorted((levels.sigmas[1:] + levels.sigmas[:-1]) / 2, sigmas)  # the nearest level
    lower = levels.sigmas[np.floor((1 - eta) * t).astype(int)].tolist()
    for i, sigma, sigma_next in intervals(sigmas):
        denoised = model(x, sigma)
        if callback:
            callback(i, sigma, x, denoised)
        # denoised + d sigma_s,  d = (x - denoised) / sigma
        sigma_s = lower[i + 1]
        ratio = sigma_s / sigma
        if sigma_next == 0 or eta == 0:
            scale = math.sqrt((1 + sigma_next**2) / (1 + sigma_s**2))
            x = combine(scale * ratio, x, scale * (1 - ratio), denoised)
        else:
            up = math.sqrt(max(sigma_next**2 - sigma_s**2, 0.0))
            x = combine(ratio, x, 1 - ratio, denoised, up, noise(sigma, sigma_next))
    return x
