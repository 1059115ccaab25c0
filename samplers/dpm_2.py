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
    steps, churns = len(sigmas) - 1, churn.s_churn > 0
    for i, sigma, sigma_next in intervals(sigmas):
        x, sigma_hat = churned(x, sigma, steps, noise, churn) if churns else (x, sigma)
        denoised = model(x, sigma_hat)
        if callback:
            callback(i, sigma, x, denoised)
        if sigma_next == 0:
            return denoised
        keep, weight, weight_2, denoised_2 = _midpoint(model, x, denoised, sigma_hat, sigma_next)
        x = combine(keep, x, weight, denoised, weight_2, denoised_2)
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
        down, up, _ = ancestral_step(sigma, sigma_next, eta)
        if down == 0:
            x = combine(1.0, denoised, *fresh(s_noise * up, sigma, sigma_next, noise))
        else:
            keep, weight, weight_2, denoised_2 = _midpoint(model, x, denoised, sigma, down)
            up, n = fresh(s_noise * up, sigma, sigma_next, noise)
            x = combine(keep, x, weight, denoised, weight_2, denoised_2, up, n)
    return x


def _midpoint(model: Denoiser, x: np.ndarray, denoised: np.ndarray, sigma: float, sigma_next: float):
    """-> weights of x, denoised and denoised_2 in the step, and denoised_2"""
    # x_2 = x + d (sigma_mid - sigma),  d = (x - denoised) / sigma
    sigma_mid = math.sqrt(sigma * sigma_next)
    ratio = sigma_mid / sigma
    denoised_2 = model(combine(ratio, x, 1 - ratio, denoised), sigma_mid)
    # x + d_2 (sigma_next - sigma),  d_2 = (x_2 - denoised_2) / sigma_mid
    share = (sigma_next - sigma) / sigma_mid
    return 1 + share * ratio, share * (1 - ratio), -share, denoised_2
