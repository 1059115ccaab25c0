import numpy as np

from refsd.kernels.combine import combine
from refsd.kernels.multistep import multistep
from refsd.samplers.ipndm import ADAMS_BASHFORTH
from refsd.samplers.parameterization import Denoiser
from refsd.samplers.step import Callback, StepNoise, intervals, no_noise


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
    for i, sigma, sigma_next in intervals(sigmas):
        denoised = model(x, sigma)
        if callback:
            callback(i, sigma, x, denoised)
        dt = sigma_next - sigma
        weights = [weight * dt for weight in ADAMS_BASHFORTH[len(ds)]]
        x, d = multistep(x, denoised, sigma, weights, ds)
        if i == 0 and sigma_next > 0:
            # x + (d + d_2) dt / 2 = x_2 + (d_2 - d) dt / 2,  and x_2 - denoised = d sigma_next
            half = dt / (2 * sigma_next)
            x = combine(1.0, x, half, denoised, -half, model(x, sigma_next))
        ds = [d, *ds[:2]]
    return x
