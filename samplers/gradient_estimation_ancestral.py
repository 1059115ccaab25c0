import numpy as np

from refsd.kernels.combine import combine
from refsd.samplers.ancestral import NONE, AncestralStep, ancestral_step, fresh
from refsd.samplers.parameterization import Denoiser
from refsd.samplers.step import Callback, StepNoise, intervals


def gradient_estimation_ancestral(
    model: Denoiser,
    x: np.ndarray,
    sigmas: np.ndarray,
    noise: StepNoise,
    callback: Callback | None = None,
    eta: float = 1.0,
    s_noise: float = 1.0,
    gamma: float = 2.0,
    ancestral: AncestralStep = ancestral_step,
) -> np.ndarray:
    """gradient_estimation down to a lower sigma, and fresh noise up to the next: euler_ge with an eta.

    Arguments: gradient_estimation's. noise: drawn from once a step, not where eta or the next sigma is 0
    ancestral: flow_ancestral_step for a rectified flow
    Source: stable-diffusion.cpp sample_gradient_estimation.
    """
    x_last = denoised_last = last = None
    for i, sigma, sigma_next in intervals(sigmas):
        denoised = model(x, sigma)
        if callback:
            callback(i, sigma, x, denoised)
        if sigma_next == 0:
            return denoised
        down, up, scale = ancestral(sigma, sigma_next, eta)
        up, n = fresh(s_noise * up, sigma, sigma_next, noise) if eta else NONE
        # scale (x + dt (gamma d + (1 - gamma) d_last)) + up n,  d = (x - denoised) / sigma
        dt = scale * (down - sigma)
        if last is None:
            a = dt / sigma
            moved = combine(scale + a, x, -a, denoised, up, n)
        else:
            a, b = gamma * dt / sigma, (1 - gamma) * dt / last
            moved = combine(scale + a, x, -a, denoised, b, x_last, -b, denoised_last, up, n)
        x_last, denoised_last, last, x = x, denoised, sigma, moved
    return x
