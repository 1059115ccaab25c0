"""DPM-Solver-2 in k-diffusion's form: the slope at the geometric midpoint of a step."""

import math

import numpy as np

from refsd.kernels.combine import combine
from refsd.samplers.ancestral import ancestral_step, fresh
from refsd.samplers.churn import NO_CHURN, Churn, churned
from refsd.samplers.parameterization import Denoiser
from refsd.samplers.step import Callback, StepNoise, intervals, no_noise


def dpm_2(
    model: Denoiser,
    x: np.ndarray,
    sigmas: np.ndarray,
    noise: StepNoise = no_noise,
    callback: Callback | None = None,
    churn: Churn = NO_CHURN,
) -> np.ndarray:
    """The midpoint rule in log sigma: sigma_mid = sqrt(sigma sigma_next). Order 2, two calls a step.

    x:      latents at sigmas[0]
    sigmas: [n + 1], falling; a step to 0 is an Euler step
    noise:  drawn from where `churn` says so
    -> latents at sigmas[-1], dtype of x
    Source: Lu et al. 2022 (DPM-Solver), algorithm 1 with r1 1/2; k-diffusion sample_dpm_2.
    """
    steps = len(sigmas) - 1
    for i, sigma, sigma_next in intervals(sigmas):
        x, sigma_hat = churned(x, sigma, steps, noise, churn)
        denoised = model(x, sigma_hat)
        if callback:
            callback(i, sigma, x, denoised)
        x = combine(*_midpoint_step(model, x, denoised, sigma_hat, sigma_next))
    return x


def dpm_2_ancestral(
    model: Denoiser,
    x: np.ndarray,
    sigmas: np.ndarray,
    noise: StepNoise,
    callback: Callback | None = None,
    eta: float = 1.0,
    s_noise: float = 1.0,
) -> np.ndarray:
    """dpm_2's step to sigma_down, then fresh noise up to the next sigma.

    x:      latents at sigmas[0]
    sigmas: [n + 1], falling; a step to 0 is an Euler step
    noise:  drawn from once a step, not where the next sigma is 0
    -> latents at sigmas[-1], dtype of x
    Source: k-diffusion sample_dpm_2_ancestral.
    """
    for i, sigma, sigma_next in intervals(sigmas):
        denoised = model(x, sigma)
        if callback:
            callback(i, sigma, x, denoised)
        step = ancestral_step(sigma, sigma_next, eta)
        moved = _midpoint_step(model, x, denoised, sigma, step.down)
        x = combine(*moved, *fresh(step, sigma, sigma_next, noise, s_noise))
    return x


def _midpoint_step(model: Denoiser, x: np.ndarray, denoised: np.ndarray, sigma: float, sigma_next: float):
    """-> the step's terms, as combine takes them"""
    if sigma_next == 0:
        return 1.0, denoised
    # x_2 = x + d (sigma_mid - sigma),  d = (x - denoised) / sigma
    sigma_mid = math.sqrt(sigma * sigma_next)
    ratio = sigma_mid / sigma
    x_2 = combine(ratio, x, 1 - ratio, denoised)
    # x + d_2 (sigma_next - sigma),  d_2 = (x_2 - denoised_2) / sigma_mid
    weight = (sigma_next - sigma) / sigma_mid
    return 1.0, x, weight, x_2, -weight, model(x_2, sigma_mid)
