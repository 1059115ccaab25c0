import math

import numpy as np

from refsd.samplers.latents import sampler
from refsd.samplers.parameterization import Denoiser
from refsd.samplers.step import Callback, StepNoise, intervals, no_noise


@sampler
def dpmpp_2m(
    model: Denoiser,
    x: np.ndarray,
    sigmas: np.ndarray,
    noise: StepNoise = no_noise,
    callback: Callback | None = None,
    lower_order_final: bool = False,
) -> np.ndarray:
    """DPM-Solver++(2M): the exponential integrator in t = -ln sigma, denoised extrapolated from two values.

        x <- sigma_next / sigma x + (1 - e^-h) ((1 + 1 / 2r) denoised - 1 / 2r denoised_last),  r = h_last / h

    x:      latents at sigmas[0]
    sigmas: [n + 1], falling; the first step, and one to 0, is of order 1; one of no length keeps x
    noise:  never drawn from
    lower_order_final: the last step is of order 1 wherever it leads
    -> latents at sigmas[-1], dtype of x
    Source: Lu et al. 2022 (DPM-Solver++), algorithm 2; k-diffusion sample_dpmpp_2m.
    """
    old_denoised, h_last = None, 0.0
    for i, sigma, sigma_next in intervals(sigmas):
        denoised = model(x, sigma)
        if callback:
            callback(i, sigma, x, denoised)
        if sigma_next == 0:
            return denoised
        h = math.log(sigma / sigma_next)
        if old_denoised is None or h == 0 or (lower_order_final and i == len(sigmas) - 2):
            x = (sigma_next / sigma) * x - math.expm1(-h) * denoised
        else:
            r = h_last / h
            denoised_d = (1 + 1 / (2 * r)) * denoised - (1 / (2 * r)) * old_denoised
            x = (sigma_next / sigma) * x - math.expm1(-h) * denoised_d
        old_denoised, h_last = denoised, h
    return x


@sampler
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
    old_denoised, h_last = None, 0.0
    for i, sigma, sigma_next in intervals(sigmas):
        denoised = model(x, sigma)
        if callback:
            callback(i, sigma, x, denoised)
        if sigma_next == 0:
            return denoised
        h = math.log(sigma / sigma_next)
        if old_denoised is None:
            x = (sigma_next / sigma) * x - math.expm1(-h) * denoised
        else:
            r, h_d = max(h_last, h) / min(h_last, h), (h_last + h) / 2
            denoised_d = (1 + 1 / (2 * r)) * denoised - (1 / (2 * r)) * old_denoised
            x = (sigma_next / sigma) * x - math.expm1(-h_d) * denoised_d
        old_denoised, h_last = denoised, h
    return x
