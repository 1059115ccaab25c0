"""CFG++: step towards the guided denoised, but add back the noise predicted without the prompt."""

from collections.abc import Callable

import numpy as np

from refsd.samplers.ancestral import ancestral_step
from refsd.samplers.latents import sampler
from refsd.samplers.step import intervals, no_callback, no_noise

# (x, sigma) -> denoised with guidance, denoised without the prompt
GuidedDenoiser = Callable[[np.ndarray, float], tuple[np.ndarray, np.ndarray]]


@sampler
def euler_cfg_pp(model, x, sigmas, noise=no_noise, callback=no_callback):
    """Sample with Euler's method: x <- denoised + sigma_next (x - uncond_denoised) / sigma.

    model:  (x, sigma) -> denoised, uncond_denoised; its guidance scale is the paper's lambda, 0 .. 1
    sigmas: [n + 1], falling
    noise:  not used
    Source: Chung et al. 2024 (CFG++), algorithm 2; ComfyUI sample_euler_cfg_pp.
    """
    for i, sigma, sigma_next in intervals(sigmas):
        denoised, uncond = model(x, sigma)
        callback(i, sigma, x, denoised)
        d = (x - uncond) / sigma
        x = denoised + d * sigma_next
    return x


@sampler
def euler_ancestral_cfg_pp(model, x, sigmas, noise, callback=no_callback, eta=1.0, s_noise=1.0):
    """Sample with euler_cfg_pp down to the ancestral step's lower sigma, then add fresh noise up to the next.

    Arguments: as in euler_cfg_pp. noise: called once a step, except in a step to 0
    Source: ComfyUI sample_euler_ancestral_cfg_pp.
    """
    for i, sigma, sigma_next in intervals(sigmas):
        denoised, uncond = model(x, sigma)
        callback(i, sigma, x, denoised)
        sigma_down, sigma_up, _ = ancestral_step(sigma, sigma_next, eta)
        d = (x - uncond) / sigma
        x = denoised + d * sigma_down
        if sigma_next > 0:
            x = x + noise(sigma, sigma_next) * (s_noise * sigma_up)
    return x
