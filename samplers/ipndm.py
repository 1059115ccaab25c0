"""Improved PNDM: Adams-Bashforth on the slope, with the weights for evenly spaced steps."""

import numpy as np

from refsd.samplers.latents import sampler
from refsd.samplers.step import intervals, no_callback, no_noise

# number of slopes -> their weights, newest first
ADAMS_BASHFORTH = {
    1: (1.0,),
    2: (3 / 2, -1 / 2),
    3: (23 / 12, -16 / 12, 5 / 12),
    4: (55 / 24, -59 / 24, 37 / 24, -9 / 24),
}


@sampler
def ipndm(model, x, sigmas, noise=no_noise, callback=no_callback):
    """Sample with x <- x + dt (55 d - 59 d_1 + 37 d_2 - 9 d_3) / 24, with fewer slopes at first. One call a step.

    The weights are those of even steps in sigma, whatever the schedule; lms has the correct ones.

    sigmas: [n + 1], falling
    noise:  not used
    Source: Zhang & Chen 2023 (DEIS), appendix, iPNDM; ComfyUI sample_ipndm.
    """
    ds: list[np.ndarray] = []
    for i, sigma, sigma_next in intervals(sigmas):
        denoised = model(x, sigma)
        callback(i, sigma, x, denoised)
        d = (x - denoised) / sigma
        dt = sigma_next - sigma
        ds = [d, *ds[:3]]
        for c, d in zip(ADAMS_BASHFORTH[len(ds)], ds, strict=True):
            x = x + c * dt * d
    return x


@sampler
def ipndm_v_sdcpp(model, x, sigmas, noise=no_noise, callback=no_callback):
    """Sample with ipndm, but in the second step allow for uneven steps: (1 + r / 2) d - r / 2 d_1, r = h / h_1.

    sigmas: [n + 1], falling
    noise:  not used
    Source: stable-diffusion.cpp sample_ipndm_v; ComfyUI's ipndm_v allows for uneven steps at every order.
    """
    ds: list[np.ndarray] = []
    for i, sigma, sigma_next in intervals(sigmas):
        denoised = model(x, sigma)
        callback(i, sigma, x, denoised)
        d = (x - denoised) / sigma
        dt = sigma_next - sigma
        ds = [d, *ds[:3]]
        weights = ADAMS_BASHFORTH[len(ds)]
        if len(ds) == 2:
            r = dt / (sigma - float(sigmas[i - 1]))
            weights = 1 + r / 2, -r / 2
        for c, d in zip(weights, ds, strict=True):
            x = x + c * dt * d
    return x
