"""Exponential integrators of denoised with refined weights: several steps' values, or two calls a step."""

import math

import numpy as np

from refsd.kernels.combine import combine
from refsd.samplers.ancestral import NONE, AncestralStep, ancestral_step, fresh
from refsd.samplers.parameterization import Denoiser
from refsd.samplers.step import Callback, StepNoise, intervals


def phi_1(h: float) -> float:
    """(1 - e^-h) / h"""
    return -math.expm1(-h) / h


def phi_2(h: float) -> float:
    """(phi_1(-h) - 1) / -h = (h - 1 + e^-h) / h^2"""
    return (1 - phi_1(h)) / h


def res_multistep(
    model: Denoiser,
    x: np.ndarray,
    sigmas: np.ndarray,
    noise: StepNoise,
    callback: Callback | None = None,
    eta: float = 0.0,
    s_noise: float = 1.0,
    ancestral: AncestralStep = ancestral_step,
) -> np.ndarray:
    """The second-order exponential integrator of Zhang et al. on the last two values of denoised.

        x <- e^-h x + h (b1 denoised + b2 last),  b2 = phi_2(h) / c2,  b1 = phi_1(h) - b2
        h = ln(sigma / down),  c2 = ln(down_last / sigma_last) / h, which is negative

    x:      latents at sigmas[0]
    sigmas: [n + 1], falling; the first step, and one to 0, is an Euler step
    noise:  drawn from once a step where eta is not 0, not where the next sigma is 0
    ancestral: flow_ancestral_step for a rectified flow
    -> latents at sigmas[-1], dtype of x
    Source: Zhang et al. 2023 (Improved order analysis of DEIS); ComfyUI sample_res_multistep.
    """
    last, down_last, sigma_last = None, 0.0, 0.0
    for i, sigma, sigma_next in intervals(sigmas):
        denoised = model(x, sigma)
        if callback:
            callback(i, sigma, x, denoised)
        down, up, scale = ancestral(sigma, sigma_next, eta)
        ratio = down / sigma
        up, n = fresh(s_noise * up, sigma, sigma_next, noise) if eta else NONE
        if last is None or down == 0:
            x = combine(scale * ratio, x, scale * (1 - ratio), denoised, up, n)
        else:
            h = math.log(sigma / down)
            c2 = math.log(down_last / sigma_last) / h
            b2 = phi_2(h) / c2
            b1 = phi_1(h) - b2
            x = combine(scale * ratio, x, scale * h * b1, denoised, scale * h * b2, last, up, n)
        last, down_last, sigma_last = denoised, down, sigma
    return x


def res_2s(
    model: Denoiser,
    x: np.ndarray,
    sigmas: np.ndarray,
    noise: StepNoise,
    callback: Callback | None = None,
    eta: float = 0.0,
    s_noise: float = 1.0,
    ancestral: AncestralStep = ancestral_step,
) -> np.ndarray:
    """The same in one step: denoised again in the middle, c2 = 1/2.

        x_2 = x + h/2 phi_1(h/2) (denoised - x)
        x <- x + h (b1 (denoised - x) + b2 (denoised_2 - x)),  b2 = 2 phi_2(h),  b1 = phi_1(h) - b2

    x:      latents at sigmas[0]
    sigmas: [n + 1], falling; a step to 0 takes denoised
    noise:  drawn from once a step where eta is not 0, not where the next sigma is 0
    -> latents at sigmas[-1], dtype of x
    Source: Zhang et al. 2023; RES4LYF; stable-diffusion.cpp sample_res_2s.
    """
    for i, sigma, sigma_next in intervals(sigmas):
        denoised = model(x, sigma)
        if callback:
            callback(i, sigma, x, denoised)
        down, up, scale = ancestral(sigma, sigma_next, eta)
        up, n = fresh(s_noise * up, sigma, sigma_next, noise) if eta else NONE
        if down == 0:
            x = combine(scale, denoised, up, n)
        else:
            h = math.log(sigma / down)
            moved = h / 2 * phi_1(h / 2)
            denoised_2 = model(combine(1 - moved, x, moved, denoised), math.sqrt(sigma * down))
            b2 = 2 * phi_2(h)
            b1 = phi_1(h) - b2
            # x + h (b1 (denoised - x) + b2 (denoised_2 - x)),  and h (b1 + b2) = 1 - e^-h
            x = combine(scale * down / sigma, x, scale * h * b1, denoised, scale * h * b2, denoised_2, up, n)
    return x
