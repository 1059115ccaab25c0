import math

from refsd.samplers.latents import sampler
from refsd.samplers.step import intervals, no_callback, no_noise


@sampler
def dpmpp_2m(model, x, sigmas, noise=no_noise, callback=no_callback, lower_order_final=False):
    """Sample with DPM-Solver++(2M): an exponential integrator in t = -ln sigma that extrapolates denoised linearly.

        x <- sigma_next / sigma x + (1 - e^-h) ((1 + 1 / 2r) denoised - 1 / 2r denoised_last),  r = h_last / h

    sigmas: [n + 1], falling; the first step, and a step to 0, are of order 1; a step of length 0 keeps x
    noise:  not used
    lower_order_final: the last step is of order 1 even if it does not lead to 0
    Source: Lu et al. 2022 (DPM-Solver++), algorithm 2; k-diffusion sample_dpmpp_2m.
    """
    old_denoised, h_last = None, 0.0
    for i, sigma, sigma_next in intervals(sigmas):
        denoised = model(x, sigma)
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
def dpmpp_2m_v2(model, x, sigmas, noise=no_noise, callback=no_callback):
    """Sample with stable-diffusion.cpp's dpm++2mv2: r = max / min of the two steps, and 1 - e^-h with h their mean.

    x is multiplied by this step's sigma_next / sigma, denoised by the mean step's weight. If steps are uneven in ln
    sigma, the two weights do not add up to 1, and the order falls from 2 to 1.

    sigmas: [n + 1], falling; the first step, and a step to 0, are of order 1
    noise:  not used
    Source: stable-diffusion.cpp sample_dpmpp_2m_v2.
    """
    old_denoised, h_last = None, 0.0
    for i, sigma, sigma_next in intervals(sigmas):
        denoised = model(x, sigma)
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
