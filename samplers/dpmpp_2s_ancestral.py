import math

from refsd.samplers.ancestral import ancestral_step, flow_ancestral_step_above_0
from refsd.samplers.latents import sampler
from refsd.samplers.step import intervals, no_callback


@sampler
def dpmpp_2s_ancestral(model, x, sigmas, noise, callback=no_callback, eta=1.0, s_noise=1.0):
    """Sample with DPM-Solver++(2S) ancestral: an exponential integrator with denoised at the middle of the step.

        x_2 = sigma_mid / sigma x + (1 - e^(-h/2)) denoised,         sigma_mid = sqrt(sigma down)
        x <- down / sigma x + (1 - e^-h) model(x_2, sigma_mid) + up noise

    sigmas: [n + 1], falling; a step to 0 is an Euler step
    noise:  called once a step, except in a step to 0
    Source: Lu et al. 2022 (DPM-Solver++), algorithm 1; k-diffusion sample_dpmpp_2s_ancestral.
    """
    for i, sigma, sigma_next in intervals(sigmas):
        denoised = model(x, sigma)
        callback(i, sigma, x, denoised)
        sigma_down, sigma_up, _ = ancestral_step(sigma, sigma_next, eta)
        if sigma_down == 0:
            x = denoised
        else:
            h = math.log(sigma / sigma_down)
            sigma_mid = math.sqrt(sigma * sigma_down)
            x_2 = (sigma_mid / sigma) * x - math.expm1(-h / 2) * denoised
            denoised_2 = model(x_2, sigma_mid)
            x = (sigma_down / sigma) * x - math.expm1(-h) * denoised_2
        if sigma_next > 0:
            x = x + noise(sigma, sigma_next) * (s_noise * sigma_up)
    return x


# What `middle` may be: (sigma, down) -> sigma_mid; None reuses denoised instead of a second call


def _middle(sigma: float, down: float) -> float:
    return 1 / (math.sqrt((1 - sigma) / sigma * (1 - down) / down) + 1)


def middle_spared(sigma: float, down: float) -> float | None:
    """Leave out the second call of a step from 1."""
    return None if 1 - sigma < 1e-6 else _middle(sigma, down)


def middle_below_one(sigma: float, down: float) -> float:
    """Call the model at 0.9999 in a step from 1."""
    return 0.9999 if sigma == 1 else _middle(sigma, down)


@sampler
def dpmpp_2s_ancestral_flow(
    model, x, sigmas, noise, callback=no_callback, eta=1.0, s_noise=1.0, middle=middle_spared
):
    """Sample a rectified flow with DPM-Solver++(2S); the middle is that in log SNR, ln((1 - sigma) / sigma).

        odds = sqrt((1 - sigma) / sigma (1 - down) / down),  sigma_mid = 1 / (odds + 1)
        x_2 = sigma_mid / sigma x + (1 - sigma_mid / sigma) denoised
        x <- scale (down / sigma x + (1 - down / sigma) model(x_2, sigma_mid)) + up noise

    sigmas: [n + 1], falling from at most 1
    noise:  called once a step, except in a step to 0
    middle: of a step from 1, where that in log SNR is 1 too: middle_spared, or ComfyUI's middle_below_one
    Source: stable-diffusion.cpp sample_dpmpp_2s_ancestral_flow; ComfyUI sample_dpmpp_2s_ancestral_RF, at 02159d81.
    """
    for i, sigma, sigma_next in intervals(sigmas):
        denoised = model(x, sigma)
        callback(i, sigma, x, denoised)
        if sigma_next == 0:
            return denoised
        sigma_down, sigma_up, scale = flow_ancestral_step_above_0(sigma, sigma_next, eta)
        sigma_mid = middle(sigma, sigma_down)
        denoised_2 = denoised
        if sigma_mid is not None:
            ratio = sigma_mid / sigma
            x_2 = ratio * x + (1 - ratio) * denoised
            denoised_2 = model(x_2, sigma_mid)
        ratio = sigma_down / sigma
        x = scale * (ratio * x + (1 - ratio) * denoised_2)
        x = x + noise(sigma, sigma_next) * (s_noise * sigma_up)
    return x
