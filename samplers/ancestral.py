"""Compute an ancestral step: the sigma to step down to, and the noise that leads back up."""

import math

from refsd.samplers.step import StepsError

# down: sigma that the solver steps to; up: standard deviation of the fresh noise; scale: factor of x before noise.
Ancestral = tuple[float, float, float]


def ancestral_step(sigma: float, sigma_next: float, eta: float = 1.0) -> Ancestral:
    """Split a step to sigma_next into a step down and fresh noise: down^2 + up^2 = sigma_next^2.

        up = min(sigma_next, eta * sqrt(sigma_next^2 (sigma^2 - sigma_next^2) / sigma^2))

    eta: 0 is deterministic, 1 the posterior of DDPM
    Source: k-diffusion sampling.py, get_ancestral_step.
    """
    if eta == 0:
        return sigma_next, 0.0, 1.0
    ratio = sigma_next / sigma
    up = sigma_next * min(1.0, eta * math.sqrt((1 - ratio) * (1 + ratio)))
    return math.sqrt((sigma_next - up) * (sigma_next + up)), up, 1.0


def flow_ancestral_step(sigma: float, sigma_next: float, eta: float = 1.0) -> Ancestral:
    """Split a step of a rectified flow, where x = (1 - sigma) data + sigma noise.

        down = sigma_next (1 + (sigma_next / sigma - 1) eta)
        scale = (1 - sigma_next) / (1 - down),  up^2 = sigma_next^2 - (scale down)^2

    Source: ComfyUI sample_euler_ancestral_RF; stable-diffusion.cpp get_ancestral_step_flow.
    """
    if eta == 0 or sigma_next == 0:
        return sigma_next, 0.0, 1.0
    down = sigma_next * (1 + (sigma_next / sigma - 1) * eta)
    scale = (1 - sigma_next) / (1 - down)
    return down, math.sqrt(max(sigma_next**2 - (scale * down) ** 2, 0.0)), scale


def flow_ancestral_step_above_0(sigma: float, sigma_next: float, eta: float = 1.0) -> Ancestral:
    """Split a flow's step for a solver that takes a root or logarithm of `down`.

    Raises StepsError if an eta above 1 makes `down` 0 or negative.
    """
    step = down, _, _ = flow_ancestral_step(sigma, sigma_next, eta)
    if down <= 0 < sigma_next:
        raise StepsError(f"eta {eta:g} steps from sigma {sigma:.4g} to {down:.4g}, not above 0; take a smaller one")
    return step
