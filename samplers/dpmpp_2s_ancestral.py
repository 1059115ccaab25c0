import math

import numpy as np

from refsd.kernels.combine import combine
from refsd.samplers.ancestral import ancestral_step, flow_ancestral_step, fresh
from refsd.samplers.parameterization import Denoiser
from refsd.samplers.step import Callback, StepNoise, intervals


def dpmpp_2s_ancestral(
    model: Denoiser,
    x: np.ndarray,
    sigmas: np.ndarray,
    noise: StepNoise,
    callback: Callback | None = None,
    eta: float = 1.0,
    s_noise: float = 1.0,
) -> np.ndarray:
    """DPM-Solver++(2S): the exponential integrator with denoised taken at the middle of the step, made ancestral.

        x_2 = sigma_mid / sigma x + (1 - e^(-h/2)) denoised,         sigma_mid = sqrt(sigma down)
        x <- down / sigma x + (1 - e^-h) model(x_2, sigma_mid) + up noise

    x:      latents at sigmas[0]
    sigmas: [n + 1], falling; a step to 0 is an Euler step
    noise:  drawn from once a step, not where the next sigma is 0
    -> latents at sigmas[-1], dtype of x
    Source: Lu et al. 2022 (DPM-Solver++), algorithm 1; k-diffusion sample_dpmpp_2s_ancestral.
    """
    for i, sigma, sigma_next in intervals(sigmas):
        denoised = model(x, sigma)
        if callback:
            callback(i, sigma, x, denoised)
        down, up, _ = ancestral_step(sigma, sigma_next, eta)
        up, n = fresh(s_noise * up, sigma, sigma_next, noise)
        if down == 0:
            x = combine(1.0, denoised, up, n)
        else:
            h = math.log(sigma / down)
            sigma_mid = math.sqrt(sigma * down)
            denoised_2 = model(combine(sigma_mid / sigma, x, -math.expm1(-h / 2), denoised), sigma_mid)
            x = combine(down / sigma, x, -math.expm1(-h), denoised_2, up, n)
    return x


def dpmpp_2s_ancestral_flow(
    model: Denoiser,
    x: np.ndarray,
    sigmas: np.ndarray,
    noise: StepNoise,
    callback: Callback | None = None,
    eta: float = 1.0,
    s_noise: float = 1.0,
) -> np.ndarray:
    """DPM-Solver++(2S) for a rectified flow: the middle in log SNR, ln((1 - sigma) / sigma).

        odds = sqrt((1 - sigma) / sigma (1 - down) / down),  sigma_mid = 1 / (odds + 1)
        x_2 = sigma_mid / sigma x + (1 - sigma_mid / sigma) denoised
        x <- scale (down / sigma x + (1 - down / sigma) model(x_2, sigma_mid)) + up noise

    x:      latents at sigmas[0]
    sigmas: [n + 1], falling from at most 1; from 1 on the middle is 1, and its call is spared
    noise:  drawn from once a step, not where the next sigma is 0
    -> latents at sigmas[-1], dtype of x
    Source: ComfyUI sample_dpmpp_2s_ancestral_RF; stable-diffusion.cpp sample_dpmpp_2s_ancestral_flow.
    """
    for i, sigma, sigma_next in intervals(sigmas):
        denoised = model(x, sigma)
        if callback:
            callback(i, sigma, x, denoised)
        if sigma_next == 0:
            return denoised
        down, up, scale = flow_ancestral_step(sigma, sigma_next, eta)
        denoised_2 = denoised
        if 1 - sigma >= 1e-6:
            odds = math.sqrt((1 - sigma) / sigma * (1 - down) / down)
            ratio = 1 / (odds + 1) / sigma
            denoised_2 = model(combine(ratio, x, 1 - ratio, denoised), ratio * sigma)
        ratio = down / sigma
        up, n = fresh(s_noise * up, sigma, sigma_next, noise)
        x = combine(scale * ratio, x, scale * (1 - ratio), denoised_2, up, n)
    return x
