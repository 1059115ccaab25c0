import numpy as np

from refsd.samplers.ipndm import ADAMS_BASHFORTH
from refsd.samplers.latents import sampler
from refsd.samplers.step import intervals, no_callback, no_noise


@sampler
def plms(model, x, sigmas, noise=no_noise, callback=no_callback):
    """Sample with pseudo linear multistep: ipndm, but with a first step of order 2, which calls the model twice.

    sigmas: [n + 1], falling; the first step must not be to 0
    noise:  not used
    Source: Liu et al. 2022 (PNDM), algorithm 2 with PLMS's start; diffusers PNDMScheduler with skip_prk_steps.
    """
    ds: list[np.ndarray] = []
    for i, sigma, sigma_next in intervals(sigmas):
        denoised = model(x, sigma)
        callback(i, sigma, x, denoised)
        d = (x - denoised) / sigma
        dt = sigma_next - sigma
        ds = [d, *ds[:3]]
        if i == 0 and sigma_next > 0:
            x_2 = x + d * dt
            denoised_2 = model(x_2, sigma_next)
            d_2 = (x_2 - denoised_2) / sigma_next
            d_prime = (d + d_2) / 2
            x = x + d_prime * dt
        else:
            for c, d in zip(ADAMS_BASHFORTH[len(ds)], ds, strict=True):
                x = x + c * dt * d
    return x
