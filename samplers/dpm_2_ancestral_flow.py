import math

import numpy as np

from refsd.samplers.ancestral import flow_ancestral_step, renoised
from refsd.samplers.parameterization import Denoiser
from refsd.samplers.step import Callback, StepNoise


def dpm_2_ancestral_flow(
    model: Denoiser,
    x: np.ndarray,
    sigmas: np.ndarray,
    noise: StepNoise,
    callback: Callback | None = None,
    eta: float = 1.0,
    s_noise: float = 1.0,
) -> np.ndarray:
    """dpm_2_ancestral for a rectified flow: its ancestral step, the midpoint still sqrt(sigma down).

    Arguments: dpm_2_ancestral's. Source: ComfyUI sample_dpm_2_ancestral_RF.
    """
    for i in range(len(sigmas) - 1):
        sigma, sigma_next = float(sigmas[i]), float(sigmas[i + 1])
        denoised = model(x, sigma)
        if callback:
            callback(i, sigma, x, denoised)
        if sigma_next == 0:
            return denoised
        step = flow_ancestral_step(sigma, sigma_next, eta)
        sigma_mid = math.sqrt(sigma * step.down)
        x_2 = x + (x - denoised) / sigma * (sigma_mid - sigma)
        d_2 = (x_2 - model(x_2, sigma_mid)) / sigma_mid
        x = renoised(x + d_2 * (step.down - sigma), step, sigma, sigma_next, noise, s_noise)
    return x
