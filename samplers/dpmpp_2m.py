import math

import numpy as np

from refsd.kernels.combine import combine
from refsd.samplers.parameterization import Denoiser
from refsd.samplers.step import Callback, StepNoise, intervals, no_noise


def dpmpp_2m(
    model: Denoiser,
    x: np.ndarray,
    sigmas: np.ndarray,
    noise: StepNoise = no_noise,
    callback: Callback | None = None,
) -> np.ndarray:
    """DPM-Solver++(2M): the exponential integrator in t = -ln sigma, denoised extrapolated from two values.

        x <- sigma_next / sigma x + (1 - e^-h) ((1 + 1 / 2r) denoised - 1 / 2r denoised_last),  r = h_last / h

    x:      latents at sigmas[0]
    sigmas: [n + 1], falling; the first step, and one to 0, is of order 1
    noise:  never drawn from
    -> latents at sigmas[-1], dtype of x
    Source: Lu et al. 2022 (DPM-Solver++), algorithm 2; k-diffusion sample_dpmpp_2m.
    """
    last, h_last = None, 0.0
    for i, sigma, sigma_next in intervals(sigmas):
        denoised = model(x, sigma)
        if callback:
            callback(i, sigma, x, denoised)
        if sigma_next == 0:
            return denoised
        h = math.log(sigma / sigma_next)
        ratio, weight = sigma_next / sigma, -math.expm1(-h)
        if last is None:
            x = combine(ratio, x, weight, denoised)
        else:
            r = h_last / h
            x = combine(ratio, x, weight * (1 + 1 / (2 * r)), denoised, -weight / (2 * r), last)
        last, h_last = denoised, h
    return x


def dpmpp_2m_v2(
    model: Denoiser,
    x: np.ndarray,
    sigmas: np.ndarray,
    noise: StepNoise = no_noise,
    callback: Callback | None = None,
) -> np.ndarray:
    """dpmpp_2m with other weights: r = max / min of the two steps, and 1 - e^-h with h their mean.

    x decays by this step's sigma_next / sigma, denoised enters by the mean step's weight: on steps uneven in ln
    sigma the two do not add up to 1, and the order falls from 2 to 1. stable-diffusion.cpp's dpm++2mv2.

    x:      latents at sigmas[0]
    sigmas: [n + 1], falling; the first step, and one to 0, is of order 1
    noise:  never drawn from
    -> latents at sigmas[-1], dtype of x
    Source: stable-diffusion.cpp sample_dpmpp_2m_v2.
    """
    last, h_last = None, 0.0
    for i, sigma, sigma_next in intervals(sigmas):
        denoised = model(x, sigma)
        if callback:
            callback(i, sigma, x, denoised)
        if sigma_next == 0:
            return denoised
        h = math.log(sigma / sigma_next)
        ratio = sigma_next / sigma
        if last is None:
            x = combine(ratio, x, -math.expm1(-h), denoised)
        else:
            r, weight = max(h_last, h) / min(h_last, h), -math.expm1(-(h_last + h) / 2)
            x = combine(ratio, x, weight * (1 + 1 / (2 * r)), denoised, -weight / (2 * r), last)
        last, h_last = denoised, h
    return x
