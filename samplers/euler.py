import numpy as np

from refsd.samplers.noise import Noise
from refsd.samplers.parameterization import Denoiser
from refsd.samplers.step import Callback


def euler(
    model: Denoiser, x: np.ndarray, sigmas: np.ndarray, noise: Noise | None = None, callback: Callback | None = None
) -> np.ndarray:
    """Euler steps on the probability flow ODE  dx/dsigma = (x - denoised(x, sigma)) / sigma.

    x:      latents at sigmas[0]
    sigmas: [n + 1], falling, last one 0
    noise:  never drawn from: the ODE is deterministic
    -> latents at sigmas[-1], dtype of x
    Source: Karras et al. 2022, algorithm 2 with S_churn 0 and without its correction; k-diffusion sample_euler.
    """
    for i in range(len(sigmas) - 1):
        sigma, sigma_next = float(sigmas[i]), float(sigmas[i + 1])
        denoised = model(x, sigma)
        if callback:
            callback(i, sigma, x, denoised)
        d = (x - denoised) / sigma
        dt = sigma_next - sigma
        x = x + d * dt
    return x
