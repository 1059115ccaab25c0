"""ComfyUI's CFG++ variants of solvers of higher order. They differ in where they use uncond."""

import math

from refsd.samplers.ancestral import ancestral_step
from refsd.samplers.latents import sampler
from refsd.samplers.res import phi_1, phi_2
from refsd.samplers.step import intervals, no_callback, no_noise


@sampler
def dpmpp_2s_ancestral_cfg_pp(model, x, sigmas, noise, callback=no_callback, eta=1.0, s_noise=1.0):
    """Sample with dpmpp_2s_ancestral on uncond; after each step add denoised - uncond of the step's start.

    model:  (x, sigma) -> denoised with guidance, uncond: denoised without the prompt
    sigmas: [n + 1], falling; a step to 0 gives denoised
    noise:  called once a step, except in a step to 0
    Source: ComfyUI sample_dpmpp_2s_ancestral_cfg_pp, at 02159d81.
    """
    for i, sigma, sigma_next in intervals(sigmas):
        denoised, uncond = model(x, sigma)
        callback(i, sigma, x, denoised)
        sigma_down, sigma_up, _ = ancestral_step(sigma, sigma_next, eta)
        if sigma_down == 0:
            x = denoised
        else:
            sigma_mid = math.sqrt(sigma * sigma_down)
            ratio = sigma_mid / sigma
            x_2 = ratio * x + (1 - ratio) * uncond
            _, uncond_2 = model(x_2, sigma_mid)
            ratio = sigma_down / sigma
            x = ratio * x + (1 - ratio) * uncond_2 + (denoised - uncond)
        if sigma_next > 0:
            x = x + noise(sigma, sigma_next) * (s_noise * sigma_up)
    return x


@sampler
def dpmpp_2s_ancestral_cfg_pp_first(model, x, sigmas, noise, callback=no_callback, eta=1.0, s_noise=1.0):
    """Sample with dpmpp_2s_ancestral on denoised, starting both stages from x + denoised - uncond.

    This is ComfyUI's other variant. Its second stage uses the uncond of the middle, so that even without guidance
    it differs from dpmpp_2s_ancestral.

    Arguments: as in dpmpp_2s_ancestral_cfg_pp.
    Source: ComfyUI sample_dpmpp_2s_ancestral_cfg_pp, at 8622f33 of patientx/ComfyUI-Zluda.
    """
    for i, sigma, sigma_next in intervals(sigmas):
        denoised, uncond = model(x, sigma)
        callback(i, sigma, x, denoised)
        sigma_down, sigma_up, _ = ancestral_step(sigma, sigma_next, eta)
        if sigma_down == 0:
            x = denoised
        else:
            sigma_mid = math.sqrt(sigma * sigma_down)
            ratio = sigma_mid / sigma
            x_2 = ratio * (x + (denoised - uncond)) + (1 - ratio) * denoised
            denoised_2, uncond_2 = model(x_2, sigma_mid)
            ratio = sigma_down / sigma
            x = ratio * (x + (denoised - uncond_2)) + (1 - ratio) * denoised_2
        if sigma_next > 0:
            x = x + noise(sigma, sigma_next) * (s_noise * sigma_up)
    return x


@sampler
def dpmpp_2m_cfg_pp(model, x, sigmas, noise=no_noise, callback=no_callback):
    """Sample like dpmpp_2m, but extrapolate from the last step's uncond instead of its denoised.

        x <- denoised + e^-h (x - uncond) + (1 - e^-h) (denoised - uncond_last) / 2r,  r = h_last / h

    Arguments: as in dpmpp_2s_ancestral_cfg_pp. noise: not used
    The first step, and a step to 0, are those of euler_cfg_pp.
    Source: ComfyUI sample_dpmpp_2m_cfg_pp.
    """
    old_uncond, h_last = None, 0.0
    for i, sigma, sigma_next in intervals(sigmas):
        denoised, uncond = model(x, sigma)
        callback(i, sigma, x, denoised)
        if sigma_next == 0:
            return denoised
        h = math.log(sigma / sigma_next)
        x = denoised + sigma_next / sigma * (x - uncond)
        if old_uncond is not None:
            r = h_last / h
            x = x - math.expm1(-h) / (2 * r) * (denoised - old_uncond)
        old_uncond, h_last = uncond, h
    return x


@sampler
def res_multistep_cfg_pp(model, x, sigmas, noise, callback=no_callback, eta=0.0, s_noise=1.0):
    """Sample with res_multistep on uncond, starting each step from x + denoised - uncond.

    Arguments: as in dpmpp_2s_ancestral_cfg_pp. noise: called if eta is not 0. The first step, and a step to
    0, are those of euler_ancestral_cfg_pp.
    Source: ComfyUI sample_res_multistep_cfg_pp; with eta 1 sample_res_multistep_ancestral_cfg_pp.
    """
    old_uncond, down_last, sigma_last = None, 0.0, 0.0
    for i, sigma, sigma_next in intervals(sigmas):
        denoised, uncond = model(x, sigma)
        callback(i, sigma, x, denoised)
        sigma_down, sigma_up, _ = ancestral_step(sigma, sigma_next, eta)
        if old_uncond is None or sigma_down == 0:
            d = (x - uncond) / sigma
            x = denoised + d * sigma_down
        else:
            h = math.log(sigma / sigma_down)
            c2 = math.log(down_last / sigma_last) / h
            b2 = phi_2(h) / c2
            b1 = phi_1(h) - b2
            x = math.exp(-h) * (x + denoised - uncond) + h * (b1 * uncond + b2 * old_uncond)
        if eta and sigma_next > 0:
            x = x + noise(sigma, sigma_next) * (s_noise * sigma_up)
        old_uncond, down_last, sigma_last = uncond, sigma_down, sigma
    return x


@sampler
def gradient_estimation_cfg_pp(model, x, sigmas, noise=no_noise, callback=no_callback, gamma=2.0):
    """Sample with euler_cfg_pp plus (gamma - 1) (d - d_last) (sigma_next - sigma), d = (x - uncond) / sigma.

    Arguments: as in dpmpp_2s_ancestral_cfg_pp. noise: not used
    Source: ComfyUI sample_gradient_estimation_cfg_pp.
    """
    d_last = None
    for i, sigma, sigma_next in intervals(sigmas):
        denoised, uncond = model(x, sigma)
        callback(i, sigma, x, denoised)
        if sigma_next == 0:
            return denoised
        d = (x - uncond) / sigma
        dt = sigma_next - sigma
        x = denoised + d * sigma_next
        if d_last is not None:
            x = x + (gamma - 1) * (d - d_last) * dt
        d_last = d
    return x
