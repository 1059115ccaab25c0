"""Exponential integrators of denoised with refined weights: multistep, or with two calls a step."""

import math

from refsd.samplers.ancestral import ancestral_step
from refsd.samplers.latents import sampler
from refsd.samplers.step import intervals, no_callback


def phi_1(h: float) -> float:
    """Compute (1 - e^-h) / h."""
    return -math.expm1(-h) / h


def phi_2(h: float) -> float:
    """Compute (phi_1(-h) - 1) / -h = (h - 1 + e^-h) / h^2."""
    return (1 - phi_1(h)) / h


@sampler
def res_multistep(model, x, sigmas, noise, callback=no_callback, eta=0.0, s_noise=1.0, ancestral=ancestral_step):
    """Sample with the second-order exponential integrator of Zhang et al. on the last two values of denoised.

        x <- e^-h x + h (b1 denoised + b2 old_denoised),  b2 = phi_2(h) / c2,  b1 = phi_1(h) - b2
        h = ln(sigma / down),  c2 = ln(down_last / sigma_last) / h, which is negative

    sigmas: [n + 1], falling; the first step, and a step to 0, are Euler steps
    noise:  called once a step if eta is not 0, except in a step to 0
    ancestral: flow_ancestral_step_above_0 for a rectified flow
    Source: Zhang et al. 2023 (Improved order analysis of DEIS); ComfyUI sample_res_multistep.
    """
    old_denoised, down_last, sigma_last = None, 0.0, 0.0
    for i, sigma, sigma_next in intervals(sigmas):
        denoised = model(x, sigma)
        callback(i, sigma, x, denoised)
        sigma_down, sigma_up, scale = ancestral(sigma, sigma_next, eta)
        if old_denoised is None or sigma_down == 0:
            d = (x - denoised) / sigma
            dt = sigma_down - sigma
            x = scale * (x + d * dt)
        else:
            h = math.log(sigma / sigma_down)
            c2 = math.log(down_last / sigma_last) / h
            b2 = phi_2(h) / c2
            b1 = phi_1(h) - b2
            x = scale * (math.exp(-h) * x + h * (b1 * denoised + b2 * old_denoised))
        if eta and sigma_next > 0:
            x = x + noise(sigma, sigma_next) * (s_noise * sigma_up)
        old_denoised, down_last, sigma_last = denoised, sigma_down, sigma
    return x


@sampler
def res_2s(model, x, sigmas, noise, callback=no_callback, eta=0.0, s_noise=1.0, ancestral=ancestral_step):
    """Sample with the single-step form of this integrator: a second call in the middle of the step, c2 = 1/2.

        x_2 = x + h/2 phi_1(h/2) (denoised - x)
        x <- x + h (b1 (denoised - x) + b2 (denoised_2 - x)),  b2 = 2 phi_2(h),  b1 = phi_1(h) - b2

    sigmas: [n + 1], falling; a step to 0 gives denoised
    noise:  called once a step if eta is not 0, except in a step to 0
    Source: Zhang et al. 2023; RES4LYF; stable-diffusion.cpp sample_res_2s.
    """
    for i, sigma, sigma_next in intervals(sigmas):
        denoised = model(x, sigma)
        callback(i, sigma, x, denoised)
        sigma_down, sigma_up, scale = ancestral(sigma, sigma_next, eta)
        if sigma_down == 0:
            x = scale * denoised
        else:
            h = math.log(sigma / sigma_down)
            x_2 = x + h / 2 * phi_1(h / 2) * (denoised - x)
            denoised_2 = model(x_2, math.sqrt(sigma * sigma_down))
            b2 = 2 * phi_2(h)
            b1 = phi_1(h) - b2
            x = scale * (x + h * (b1 * (denoised - x) + b2 * (denoised_2 - x)))
        if eta and sigma_next > 0:
            x = x + noise(sigma, sigma_next) * (s_noise * sigma_up)
    return x
