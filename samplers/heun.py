import numpy as np

from refsd.kernels.combine import combine
from refsd.samplers.churn import NO_CHURN, Churn, churned
from refsd.samplers.parameterization import Denoiser
from refsd.samplers.step import Callback, StepNoise, intervals, no_noise


def heun(
    model: Denoiser,
    x: np.ndarray,
    sigmas: np.ndarray,
    noise: StepNoise = no_noise,
    callback: Callback | None = None,
    churn: Churn = NO_CHURN,
) -> np.ndarray:
    """Heun's method: an Euler step, then the mean of the slopes at both its ends. Order 2, two calls a step.

    x:      latents at sigmas[0]
    sigmas: [n + 1], falling; a step to 0 is an Euler step
    noise:  drawn from where `churn` says so
    -> latents at sigmas[-1], dtype of x
    Source: Karras et al. 2022, algorithm 2; k-diffusion sample_heun.
    """
    steps, churns = len(sigmas) - 1, churn.s_churn > 0
    for i, sigma, sigma_next in intervals(sigmas):
        x, sigma_hat = churned(x, sigma, steps, noise, churn) if churns else (x, sigma)
        denoised = model(x, sigma_hat)
        if callback:
            callback(i, sigma, x, denoised)
        # x_2 = x + d dt,  d = (x - denoised) / sigma_hat,  dt = sigma_next - sigma_hat
        ratio = sigma_next / sigma_hat
        x = combine(ratio, x, 1 - ratio, denoised)
        if sigma_next > 0:
            # x + (d + d_2) dt / 2 = x_2 + (d_2 - d) dt / 2,  and x_2 - denoised = d sigma_next
            half = (sigma_next - sigma_hat) / (2 * sigma_next)
            x = combine(1.0, x, half, denoised, -half, model(x, sigma_next))
    return x
