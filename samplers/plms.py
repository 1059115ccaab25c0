import numpy as np

from refsd.samplers.ipndm import ADAMS_BASHFORTH
from refsd.samplers.parameterization import Denoiser
from refsd.samplers.step import Callback, StepNoise, no_noise


def plms(
    model: Denoiser,
    x: np.ndarray,
    sigmas: np.ndarray,
    noise: StepNoise = no_noise,
    callback: Callback | None = None,
) -> np.ndarray:
    """Pseudo linear multistep: ipndm with a first step of order 2, which calls the model twice.

    x:      latents at sigmas[0]
    sigmas: [n + 1], falling; the first step must not be to 0
    noise:  never drawn from
    -> latents at sigmas[-1], dtype of x
    Source: Liu et al. 2022 (PNDM), algorithm 2 with PLMS's start; diffusers PNDMScheduler with skip_prk_steps.
    """
    ds: list[np.ndarray] = []
    for i in range(len(sigmas) - 1):
        sigma, sigma_next = float(sigmas[i]), float(sigmas[i + 1])
        denoised = model(x, sigma)
        if callback:
            callback(i, sigma, x, denoised)
        d, dt = (x - denoised) / sigma, sigma_next - sigma
        ds = [d, *ds[:3]]
        if i == 0 and sigma_next > 0:
            x_2 = x + d * dt
            d_2 = (x_2 - model(x_2, sigma_next)) / sigma_next
            x = x + (d + d_2) / 2 * dt
            continue
        for weight, d in zip(ADAMS_BASHFORTH[len(ds) - 1], ds, strict=True):
            x = x + d * (weight * dt)
    return x
