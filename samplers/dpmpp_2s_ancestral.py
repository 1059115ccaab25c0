import math

import numpy as np

from refsd.samplers.ancestral import ancestral_step
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

        x_2 = sigma_mid / sigma x + (1 - e^(-h/2)) denoised,         sigma_mid = sqrt(sigma sigma_down)
        x <- sigma_down / sigma x + (1 - e^-h) model(x_2, sigma_mid) + sigma_up noise

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
        sigma_down, sigma_up = ancestral_step(sigma, sigma_next, eta)
        if sigma_down == 0:
            x = denoised
        else:
            h = math.log(sigma / sigma_down)
            sigma_mid = math.sqrt(sigma * sigma_down)
            x_2 = sigma_mid / sigma * x - math.expm1(-h / 2) * denoised
            x = sigma_down / sigma * x - math.expm1(-h) * model(x_2, sigma_mid)
        if sigma_next > 0:
            x = x + noise(sigma, sigma_next).astype(x.dtype) * (s_noise * sigma_up)
    return x
