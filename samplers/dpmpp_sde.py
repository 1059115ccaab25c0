"""DPM-Solver++ for the reverse SDE: one step with a midpoint, or several past values of denoised."""

import math

import numpy as np

from refsd.kernels.combine import combine
from refsd.samplers.ancestral import NONE, ancestral_step, fresh
from refsd.samplers.parameterization import Denoiser
from refsd.samplers.step import Callback, Signal, StepNoise, exploding_signal, intervals


def dpmpp_sde(
    model: Denoiser,
    x: np.ndarray,
    sigmas: np.ndarray,
    noise: StepNoise,
    callback: Callback | None = None,
    eta: float = 1.0,
    s_noise: float = 1.0,
    r: float = 0.5,
    signal: Signal = exploding_signal,
) -> np.ndarray:
    """DPM-Solver++ (stochastic): a noisy step to the midpoint, then one over the whole with both denoised.

        denoised' = (1 - 1 / 2r) denoised + 1 / 2r denoised_mid

    x:      latents at sigmas[0]
    sigmas: [n + 1], falling; a step to 0 is an Euler step
    noise:  a Brownian motion's increments; drawn from twice a step: to the midpoint, and over the whole step
    r:      where the midpoint lies, in -ln sigma
    signal: what the data weigh in x, for in_flow_time
    -> latents at sigmas[-1], dtype of x
    Source: k-diffusion sample_dpmpp_sde.
    """
    for i, sigma, sigma_next in intervals(sigmas):
        denoised = model(x, sigma)
        if callback:
            callback(i, sigma, x, denoised)
        if sigma_next == 0:
            return denoised
        sigma_mid = sigma * (sigma_next / sigma) ** r
        s = signal(sigma_mid)
        down, up, _ = ancestral_step(sigma, sigma_mid, eta)
        up, n = fresh(s * s_noise * up, sigma, sigma_mid, noise)
        ratio = down / sigma
        denoised_2 = model(combine(s / signal(sigma) * ratio, x, s * (1 - ratio), denoised, up, n), sigma_mid)
        s = signal(sigma_next)
        down, up, _ = ancestral_step(sigma, sigma_next, eta)
        up, n = fresh(s * s_noise * up, sigma, sigma_next, noise)
        ratio = down / sigma
        whole, late = s * (1 - ratio), 1 / (2 * r)
        x = combine(s / signal(sigma) * ratio, x, whole * (1 - late), denoised, whole * late, denoised_2, up, n)
    return x


def dpmpp_2m_sde(
    model: Denoiser,
    x: np.ndarray,
    sigmas: np.ndarray,
    noise: StepNoise,
    callback: Callback | None = None,
    eta: float = 1.0,
    s_noise: float = 1.0,
    signal: Signal = exploding_signal,
) -> np.ndarray:
    """DPM-Solver++(2M) SDE, midpoint form: half of the extrapolated difference of denoised.

        x <- sigma_next / sigma e^-eta_h x + (1 - e^-k) (denoised + (denoised - denoised_last) / 2r)
             + sigma_next sqrt(1 - e^-2eta_h) s_noise noise
        eta_h = eta h,  k = h + eta_h,  r = h_last / h

    x:      latents at sigmas[0]
    sigmas: [n + 1], falling; a step to 0 takes denoised
    noise:  a Brownian motion's increments, once a step; not drawn from where eta is 0
    signal: what the data weigh in x, for in_flow_time
    -> latents at sigmas[-1], dtype of x
    Source: Lu et al. 2022 (DPM-Solver++), SDE-DPM-Solver++(2M); k-diffusion sample_dpmpp_2m_sde.
    """
    return _dpmpp_2m_sde(model, x, sigmas, noise, callback, eta, s_noise, signal, lambda k: -0.5 * math.expm1(-k))


def dpmpp_2m_sde_heun(
    model: Denoiser,
    x: np.ndarray,
    sigmas: np.ndarray,
    noise: StepNoise,
    callback: Callback | None = None,
    eta: float = 1.0,
    s_noise: float = 1.0,
    signal: Signal = exploding_signal,
) -> np.ndarray:
    """DPM-Solver++(2M) SDE, Heun form: the extrapolated difference of denoised weighs 1 + expm1(-k) / k, not half.

    Arguments, source: dpmpp_2m_sde's, with solver_type "heun".
    """
    weight = lambda k: math.expm1(-k) / k + 1
    return _dpmpp_2m_sde(model, x, sigmas, noise, callback, eta, s_noise, signal, weight)


def _dpmpp_2m_sde(model, x, sigmas, noise, callback, eta, s_noise, signal, weight):
    last, h_last = None, 0.0
    for i, sigma, sigma_next in intervals(sigmas):
        denoised = model(x, sigma)
        if callback:
            callback(i, sigma, x, denoised)
        if sigma_next == 0:
            return denoised
        h = math.log(sigma / sigma_next)
        eta_h, s = eta * h, signal(sigma_next)
        up, n = _fresh(sigma, sigma_next, eta_h, noise, s * s_noise)
        decayed, whole = s / signal(sigma) * sigma_next / sigma * math.exp(-eta_h), -s * math.expm1(-h - eta_h)
        if last is None:
            x = combine(decayed, x, whole, denoised, up, n)
        else:
            r = h_last / h
            ahead = s * weight(h + eta_h) / r
            x = combine(decayed, x, whole + ahead, denoised, -ahead, last, up, n)
        last, h_last = denoised, h
    return x


def _fresh(sigma: float, sigma_next: float, eta_h: float, noise: StepNoise, s_noise: float):
    """What the SDE adds over a step, as a term of combine: sigma_next sqrt(1 - e^-2eta_h) s_noise, noise."""
    if eta_h == 0:
        return NONE
    return sigma_next * math.sqrt(-math.expm1(-2 * eta_h)) * s_noise, noise(sigma, sigma_next)


def dpmpp_3m_sde(
    model: Denoiser,
    x: np.ndarray,
    sigmas: np.ndarray,
    noise: StepNoise,
    callback: Callback | None = None,
    eta: float = 1.0,
    s_noise: float = 1.0,
    signal: Signal = exploding_signal,
) -> np.ndarray:
    """DPM-Solver++(3M) SDE: denoised extrapolated by its first two divided differences.

        x <- e^-k x + (1 - e^-k) denoised + phi_2 d1 - phi_3 d2 + sigma_next sqrt(1 - e^-2eta_h) s_noise noise
        k = h (1 + eta),  phi_2 = expm1(-k) / k + 1,  phi_3 = phi_2 / k - 1/2

    x:      latents at sigmas[0]
    sigmas: [n + 1], falling; a step to 0 takes denoised; the first two steps are of order 1 and 2
    noise:  a Brownian motion's increments, once a step; not drawn from where eta is 0
    signal: what the data weigh in x, for in_flow_time
    -> latents at sigmas[-1], dtype of x
    Source: k-diffusion sample_dpmpp_3m_sde.
    """
    past: list[np.ndarray] = []
    steps: list[float] = []
    for i, sigma, sigma_next in intervals(sigmas):
        denoised = model(x, sigma)
        if callback:
            callback(i, sigma, x, denoised)
        if sigma_next == 0:
            return denoised
        h = math.log(sigma / sigma_next)
        k, s = h * (1 + eta), signal(sigma_next)
        up, n = _fresh(sigma, sigma_next, eta * h, noise, s * s_noise)
        decayed, whole = s / signal(sigma) * math.exp(-k), -s * math.expm1(-k)
        phi_2 = math.expm1(-k) / k + 1
        phi_3 = phi_2 / k - 0.5
        if len(past) == 2:
            # phi_2 (d1_0 + r0 d2) - phi_3 d2,  d2 = (d1_0 - d1_1) / (r0 + r1)
            # d1_0 = (denoised - past_0) / r0,  d1_1 = (past_0 - past_1) / r1
            r0, r1 = steps[0] / h, steps[1] / h
            curve = (phi_2 * r0 - phi_3) / (r0 + r1)
            a, b = s * (phi_2 + curve) / r0, s * curve / r1
            x = combine(decayed, x, whole + a, denoised, -a - b, past[0], b, past[1], up, n)
        elif past:
            a = s * phi_2 / (steps[0] / h)
            x = combine(decayed, x, whole + a, denoised, -a, past[0], up, n)
        else:
            x = combine(decayed, x, whole, denoised, up, n)
        past, steps = [denoised, *past[:1]], [h, *steps[:1]]
    return x
