import numpy as np

from refsd.kernels.combine import combine
from refsd.samplers.ancestral import AncestralStep, ancestral_step, fresh
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
    last: list = []
    for i, sigma, sigma_next in intervals(sigmas):
        denoised = model(x, sigma)
        if callback:
            callback(i, sigma, x, denoised)
        if sigma_next == 0:
            return denoised
        step = ancestral(sigma, sigma_next, eta)
        # scale (x + dt (gamma d + (1 - gamma) d_last)) + up n,  d = (x - denoised) / sigma
        dt = step.scale * (step.down - sigma)
        a, b = (gamma * dt / sigma, (1 - gamma) * dt) if last else (dt / sigma, 0.0)
        past = [part for weight, array in last for part in (b * weight, array)]
        last = [(1 / sigma, x), (-1 / sigma, denoised)]
        n = fresh(step, sigma, sigma_next, noise, s_noise) if eta else ()
        x = combine(step.scale + a, x, -a, denoised, *past, *n)
    return x
