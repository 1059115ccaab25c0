"""DPM-Solver++ for the reverse SDE: one step with a midpoint, or several past values of denoised."""

import math

import numpy as np

from refsd.samplers.ancestral import ancestral_step, renoised
from refsd.samplers.parameterization import Denoiser
from refsd.samplers.step import Callback, StepNoise


def dpmpp_sde(
    model: Denoiser,
    x: np.ndarray,
    sigmas: np.ndarray,
    noise: StepNoise,
    callback: Callback | None = None,
    eta: float = 1.0,
    s_noise: float = 1.0,
    r: float = 0.5,
) -> np.ndarray:
    """DPM-Solver++ (stochastic): a noisy step to the midpoint, then one over the whole with both denoised.

        denoised' = (1 - 1 / 2r) denoised + 1 / 2r denoised_mid

    x:      latents at sigmas[0]
    sigmas: [n + 1], falling; a step to 0 is an Euler step
    noise:  a Brownian motion's increments; drawn from twice a step: to the midpoint, and over the whole step
    r:      where the midpoint lies, in -ln sigma
    -> latents at sigmas[-1], dtype of x
    Source: k-diffusion sample_dpmpp_sde.
    """
    for i in range(len(sigmas) - 1):
        sigma, sigma_next = float(sigmas[i]), float(sigmas[i + 1])
        denoised = model(x, sigma)
        if callback:
            callback(i, sigma, x, denoised)
        if sigma_next == 0:
            return denoised
        sigma_mid = sigma * (sigma_next / sigma) ** r
        x_2 = _noisy_step(x, denoised, sigma, sigma_mid, noise, eta, s_noise)
        denoised_2 = model(x_2, sigma_mid)
        d = (1 - 1 / (2 * r)) * denoised + 1 / (2 * r) * denoised_2
        x = _noisy_step(x, d, sigma, sigma_next, noise, eta, s_noise)
    return x


def _noisy_step(x, denoised, sigma: float, sigma_next: float, noise: StepNoise, eta: float, s_noise: float):
    step = ancestral_step(sigma, sigma_next, eta)
    ratio = step.down / sigma
    return renoised(ratio * x + (1 - ratio) * denoised, step, sigma, sigma_next, noise, s_noise)


def dpmpp_2m_sde(
    model: Denoiser,
    x: np.ndarray,
    sigmas: np.ndarray,
    noise: StepNoise,
    callback: Callback | None = None,
    eta: float = 1.0,
    s_noise: float = 1.0,
) -> np.ndarray:
    """DPM-Solver++(2M) SDE, midpoint form: half of the extrapolated difference of denoised.

        x <- sigma_next / sigma e^-eta_h x + (1 - e^-k) (denoised + (denoised - denoised_last) / 2r)
             + sigma_next sqrt(1 - e^-2eta_h) s_noise noise
        eta_h = eta h,  k = h + eta_h,  r = h_last / h

    x:      latents at sigmas[0]
    sigmas: [n + 1], falling; a step to 0 takes denoised
    noise:  a Brownian motion's increments, once a step; not drawn from where eta is 0
    -> latents at sigmas[-1], dtype of x
    Source: Lu et al. 2022 (DPM-Solver++), SDE-DPM-Solver++(2M); k-diffusion sample_dpmpp_2m_sde.
    """
    return _dpmpp_2m_sde(model, x, sigmas, noise, callback, eta, s_noise, lambda k: -0.5 * math.expm1(-k))


def dpmpp_2m_sde_heun(
    model: Denoiser,
    x: np.ndarray,
    sigmas: np.ndarray,
    noise: StepNoise,
    callback: Callback | None = None,
    eta: float = 1.0,
    s_noise: float = 1.0,
) -> np.ndarray:
    """DPM-Solver++(2M) SDE, Heun form: the extrapolated difference of denoised weighs 1 + expm1(-k) / k, not half.

    Arguments, source: dpmpp_2m_sde's, with solver_type "heun".
    """
    return _dpmpp_2m_sde(model, x, sigmas, noise, callback, eta, s_noise, lambda k: math.expm1(-k) / k + 1)


def _dpmpp_2m_sde(model, x, sigmas, noise, callback, eta, s_noise, weight):
    last, h_last = None, 0.0
    for i in range(len(sigmas) - 1):
        sigma, sigma_next = float(sigmas[i]), float(sigmas[i + 1])
        denoised = model(x, sigma)
        if callback:
            callback(i, sigma, x, denoised)
        if sigma_next == 0:
            return denoised
        h = math.log(sigma / sigma_next)
        eta_h = eta * h
        x = sigma_next / sigma * math.exp(-eta_h) * x - math.expm1(-h - eta_h) * denoised
        if last is not None:
            r = h_last / h
            x = x + weight(h + eta_h) / r * (denoised - last)
        if eta:
            x = x + noise(sigma, sigma_next).astype(x.dtype) * _fresh(sigma_next, eta_h, s_noise)
        last, h_last = denoised, h
    return x


def _fresh(sigma_next: float, eta_h: float, s_noise: float) -> float:
    """Standard deviation of the noise that the SDE adds over a step."""
    return sigma_next * math.sqrt(-math.expm1(-2 * eta_h)) * s_noise


def dpmpp_3m_sde(
    model: Denoiser,
    x: np.ndarray,
    sigmas: np.ndarray,
    noise: StepNoise,
    callback: Callback | None = None,
    eta: float = 1.0,
    s_noise: float = 1.0,
) -> np.ndarray:
    """DPM-Solver++(3M) SDE: denoised extrapolated by its first two divided differences.

        x <- e^-k x + (1 - e^-k) denoised + phi_2 d1 - phi_3 d2 + sigma_next sqrt(1 - e^-2eta_h) s_noise noise
        k = h (1 + eta),  phi_2 = expm1(-k) / k + 1,  phi_3 = phi_2 / k - 1/2

    x:      latents at sigmas[0]
    sigmas: [n + 1], falling; a step to 0 takes denoised; the first two steps are of order 1 and 2
    noise:  a Brownian motion's increments, once a step; not drawn from where eta is 0
    -> latents at sigmas[-1], dtype of x
    Source: k-diffusion sample_dpmpp_3m_sde.
    """
    past: list[np.ndarray] = []
    steps: list[float] = []
    for i in range(len(sigmas) - 1):
        sigma, sigma_next = float(sigmas[i]), float(sigmas[i + 1])
        denoised = model(x, sigma)
        if callback:
            callback(i, sigma, x, denoised)
        if sigma_next == 0:
            return denoised
        h = math.log(sigma / sigma_next)
        k = h * (1 + eta)
        x = math.exp(-k) * x - math.expm1(-k) * denoised
        phi_2 = math.expm1(-k) / k + 1
        phi_3 = phi_2 / k - 0.5
        if len(past) == 2:
            r0, r1 = steps[0] / h, steps[1] / h
            d1_0, d1_1 = (denoised - past[0]) / r0, (past[0] - past[1]) / r1
            d2 = (d1_0 - d1_1) / (r0 + r1)
            x = x + phi_2 * (d1_0 + r0 * d2) - phi_3 * d2
        elif past:
            x = x + phi_2 / (steps[0] / h) * (denoised - past[0])
        if eta:
            x = x + noise(sigma, sigma_next).astype(x.dtype) * _fresh(sigma_next, eta * h, s_noise)
        past, steps = [denoised, *past[:1]], [h, *steps[:1]]
    return x
