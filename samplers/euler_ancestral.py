import numpy as np

from refsd.samplers.ancestral import ancestral_step
from refsd.samplers.parameterization import Denoiser
from refsd.samplers.step import Callback, StepNoise


def euler_ancestral(
    model: Denoiser,
    x: np.ndarray,
    sigmas: np.ndarray,
    noise: StepNoise,
    callback: Callback | None = None,
    eta: float = 1.0,
    s_noise: float = 1.0,
) -> np.ndarray:
    """Euler steps to sigma_down, each followed by fresh noise up to the next sigma.

        x <- x + (x - denoised) / sigma * (sigma_down - sigma) + sigma_up * noise

    x:      latents at sigmas[0]
    sigmas: [n + 1], falling
    noise:  drawn from once a step, not where the next sigma is 0
    -> latents at sigmas[-1], dtype of x
    Source: k-diffusion sample_euler_ancestral.
    """
    for i in range(len(sigmas) - 1):
        sigma, sigma_next = float(sigmas[i]), float(sigmas[i + 1])
        denoised = model(x, sigma)
        if callback:
            callback(i, sigma, x, denoised)
        sigma_down, sigma_up = ancestral_step(sigma, sigma_next, eta)
        d = (x - denoised) / sigma
        dt = sigma_down - sigma
        x = x + d * dt
        if sigma_next > 0:
            x = x + noise(sigma, sigma_next).astype(x.dtype) * (s_noise * sigma_up)
    return x
