"""The step down and the noise back up, which all ancestral samplers share."""

import math


def ancestral_step(sigma: float, sigma_next: float, eta: float = 1.0) -> tuple[float, float]:
    """How far down to step, and how much fresh noise brings back up: sigma_down^2 + sigma_up^2 = sigma_next^2.

        sigma_up = min(sigma_next, eta * sqrt(sigma_next^2 (sigma^2 - sigma_next^2) / sigma^2))

    eta: 0 is deterministic, 1 the posterior of DDPM
    Source: k-diffusion sampling.py, get_ancestral_step.
    """
    if eta == 0:
        return sigma_next, 0.0
    sigma_up = min(sigma_next, eta * math.sqrt(sigma_next**2 * (sigma**2 - sigma_next**2) / sigma**2))
    return math.sqrt(sigma_next**2 - sigma_up**2), sigma_up
