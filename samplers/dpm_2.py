"""DPM-Solver-2 in k-diffusion's form, which uses the slope at the geometric midpoint of a step."""

import math

from refsd.samplers.ancestral import ancestral_step
from refsd.samplers.churn import NO_CHURN, churned
from refsd.samplers.latents import sampler
from refsd.samplers.step import intervals, no_callback, no_noise


@sampler
def dpm_2(model, x, sigmas, noise=no_noise, callback=no_callback, churn=NO_CHURN):
    """Sample with the midpoint rule in log sigma: sigma_mid = sqrt(sigma sigma_next). Order 2, two calls a step.

    sigmas: [n + 1], falling; a step to 0 is an Euler step
    noise:  called in the steps in which `churn` draws noise
    Source: Lu et al. 2022 (DPM-Solver), algorithm 1 with r1 1/2; k-diffusion sample_dpm_2.
    """
    for i, sigma, sigma_next in intervals(sigmas):
        x, sigma_hat = churned(x, sigma, len(sigmas) - 1, noise, churn)
        denoised = model(x, sigma_hat)
        callback(i, sigma, x, denoised)
        if sigma_next == 0:
            return denoised
        d = (x - denoised) / sigma_hat
        sigma_mid = math.sqrt(sigma_hat * sigma_next)
        dt_1 = sigma_mid - sigma_hat
        dt_2 = sigma_next - sigma_hat
        x_2 = x + d * dt_1
        denoised_2 = model(x_2, sigma_mid)
        d_2 = (x_2 - denoised_2) / sigma_mid
        x = x + d_2 * dt_2
    return x


@sampler
def dpm_2_ancestral(model, x, sigmas, noise, callback=no_callback, eta=1.0, s_noise=1.0, ancestral=ancestral_step):
    """Take dpm_2's step to sigma_down, then add fresh noise up to the next sigma.

    sigmas: [n + 1], falling; a step to 0 is an Euler step
    noise:  called once a step, except in a step to 0
    ancestral: flow_ancestral_step_above_0 for a rectified flow
    Source: k-diffusion sample_dpm_2_ancestral; ComfyUI sample_dpm_2_ancestral_RF.
    """
    for i, sigma, sigma_next in intervals(sigmas):
        denoised = model(x, sigma)
        callback(i, sigma, x, denoised)
        sigma_down, sigma_up, scale = ancestral(sigma, sigma_next, eta)
        if sigma_down == 0:
            x = denoised
        else:
            d = (x - denoised) / sigma
            sigma_mid = math.sqrt(sigma * sigma_down)
            dt_1 = sigma_mid - sigma
            dt_2 = sigma_down - sigma
            x_2 = x + d * dt_1
            denoised_2 = model(x_2, sigma_mid)
            d_2 = (x_2 - denoised_2) / sigma_mid
            x = scale * (x + d_2 * dt_2)
        if sigma_next > 0:
            x = x + noise(sigma, sigma_next) * (s_noise * sigma_up)
    return x
