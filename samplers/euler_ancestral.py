import math

import numpy as np

from refsd.samplers.noise import Noise
from refsd.samplers.parameterization import Denoiser
from refsd.samplers.step import Callback


def ancestral_step(sigma: float, sigma_next: float, eta: float = 1.0) -> tuple[float, float]:
    """How far down to step, and how much fresh noise brings back up: sigma_down^2 + sigma_up^2 = sigma_next^2.

        sigma_up = min(sigma_next, eta * sqrt(sigma_next^2 (sigma^2 - sigma_next^2) / sigma^2))

    Source: k-diffusion sampling.py, get_ancestral_step; for eta 1 the posterior of DDPM.
    """
    sigma_up = min(sigma_next, eta * math.sqrt(sigma_next**2 * (sigma**2 - sigma_next**2) / sigma**2))
    return math.sqrt(sigma_next**2 - sigma_up**2), sigma_up


def euler_ancestral(
    model: Denoiser, x: np.ndarray, sigmas: np.ndarray, noise: Noise, callback: Callback | None = None
) -> np.ndarray:
    """Euler steps to sigma_down, each followed by fresh noise up to the next sigma.

        x <- x + (x - denoised) / sigma * (sigma_down - sigma) + sigma_up * noise

    x:      latents at sigmas[0]
    sigmas: [n + 1], falling, last one 0
    noise:  drawn from once a step, not in the last, where sigma is 0
    -> latents at sigmas[-1], dtype of x
    Source: k-diffusion sample_euler_ancestral, with eta 1 and s_noise 1.
    """
    for i in range(len(sigmas) - 1):
        sigma, sigma_next = float(sigmas[i]), float(sigmas[i + 1])
        denoised = model(x, sigma)
        if callback:
            callback(i, sigma, x, denoised)
        d = (x - denoised) / sigma
        sigma_down, sigma_up = ancestral_step(sigma, sigma_next)
        dt = sigma_down - sigma
        x = x + d * dt
        if sigma_next > 0:
            x = x + noise.randn(x.shape).astype(x.dtype) * sigma_up
    return x
