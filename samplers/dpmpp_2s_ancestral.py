import math

import numpy as np

from refsd.samplers.ancestral import ancestral_step, flow_ancestral_step, renoised
from refsd.samplers.parameterization import Denoiser
from refsd.samplers.step import Callback, StepNoise


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
    for i in range(len(sigmas) - 1):
        sigma, sigma_next = float(sigmas[i]), float(sigmas[i + 1])
        denoised = model(x, sigma)
        if callback:
            callback(i, sigma, x, denoised)
        step = ancestral_step(sigma, sigma_next, eta)
        if step.down == 0:
            x = denoised
        else:
            h = math.log(sigma / step.down)
            sigma_mid = math.sqrt(sigma * step.down)
            x_2 = sigma_mid / sigma * x - math.expm1(-h / 2) * denoised
            x = step.down / sigma * x - math.expm1(-h) * model(x_2, sigma_mid)
        x = renoised(x, step, sigma, sigma_next, noise, s_noise)
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
    for i in range(len(sigmas) - 1):
        sigma, sigma_next = float(sigmas[i]), float(sigmas[i + 1])
        denoised = model(x, sigma)
        if callback:
            callback(i, sigma, x, denoised)
        if sigma_next == 0:
            return denoised
        step = flow_ancestral_step(sigma, sigma_next, eta)
        denoised_2 = denoised
        if 1 - sigma >= 1e-6:
            odds = math.sqrt((1 - sigma) / sigma * (1 - step.down) / step.down)
            ratio = 1 / (odds + 1) / sigma
            denoised_2 = model(ratio * x + (1 - ratio) * denoised, ratio * sigma)
        ratio = step.down / sigma
        x = renoised(ratio * x + (1 - ratio) * denoised_2, step, sigma, sigma_next, noise, s_noise)
    return x
