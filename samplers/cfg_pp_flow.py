import math

from refsd.samplers.ancestral import ancestral_step, flow_ancestral_step_above_0
from refsd.samplers.latents import sampler
from refsd.samplers.step import intervals, no_callback, no_noise


@sampler
def euler_cfg_pp_flow(model, x, sigmas, noise=no_noise, callback=no_callback):
    """Sample a rectified flow with euler_cfg_pp; uncond gets the signal's weight 1 - sigma.

        x <- (1 - sigma_next) denoised + sigma_next (x - (1 - sigma) uncond) / sigma

    Arguments: as in euler_cfg_pp. Source: ComfyUI sample_euler_cfg_pp.
    """
    return euler_ancestral_cfg_pp_flow(model, x, sigmas, noise, callback, eta=0.0)


@sampler
def euler_ancestral_cfg_pp_flow(model, x, sigmas, noise, callback=no_callback, eta=1.0, s_noise=1.0):
    """Sample with euler_cfg_pp_flow and ancestral_step in sigma / (1 - sigma); add (1 - sigma_next) up s_noise n.

    In a step from sigma 1, where sigma / (1 - sigma) is infinite, all noise is replaced, for any eta.

    Arguments: as in euler_ancestral_cfg_pp. noise: called if eta and s_noise are not 0
    Source: ComfyUI sample_euler_ancestral_cfg_pp.
    """
    for i, sigma, sigma_next in intervals(sigmas):
        denoised, uncond = model(x, sigma)
        callback(i, sigma, x, denoised)
        if sigma_next == 0:
            return denoised
        alpha, alpha_next = 1 - sigma, 1 - sigma_next
        sigma_down, sigma_up = 0.0, sigma_next / alpha_next
        if alpha > 0 or eta == 0:
            sigma_down, sigma_up, _ = ancestral_step(
                sigma / alpha if alpha > 0 else 1.0, sigma_next / alpha_next, eta
            )
        d = (x - alpha * uncond) / sigma
        x = alpha_next * (denoised + d * sigma_down)
        if eta and s_noise:
            x = x + noise(sigma, sigma_next) * (alpha_next * sigma_up * s_noise)
    return x


@sampler
def dpmpp_2s_ancestral_cfg_pp_flow(model, x, sigmas, noise, callback=no_callback, eta=1.0, s_noise=1.0):
    """Sample with dpmpp_2s_ancestral_flow on uncond; after each step add (1 - sigma_next) (denoised - uncond).

    The middle of a step from sigma 1 is 0.9999.

    Arguments: as in euler_ancestral_cfg_pp. noise: called once a step, except in a step to 0
    Source: ComfyUI sample_dpmpp_2s_ancestral_RF_cfg_pp, at 02159d81.
    """
    for i, sigma, sigma_next in intervals(sigmas):
        denoised, uncond = model(x, sigma)
        callback(i, sigma, x, denoised)
        if sigma_next == 0:
            return denoised
        sigma_down, sigma_up, scale = flow_ancestral_step_above_0(sigma, sigma_next, eta)
        odds = math.sqrt((1 - sigma) / sigma * (1 - sigma_down) / sigma_down)
        sigma_mid = 1 / (odds + 1) if sigma < 1 else 0.9999
        ratio = sigma_mid / sigma
        x_2 = ratio * x + (1 - ratio) * uncond
        _, uncond_2 = model(x_2, sigma_mid)
        ratio = sigma_down / sigma
        x = scale * (ratio * x + (1 - ratio) * uncond_2) + (1 - sigma_next) * (denoised - uncond)
        if eta:
            x = x + noise(sigma, sigma_next) * (s_noise * sigma_up)
    return x
