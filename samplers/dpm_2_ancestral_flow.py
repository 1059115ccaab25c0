import math

import numpy as np

from refsd.kernels.combine import combine
from refsd.samplers.ancestral import flow_ancestral_step, fresh
from refsd.samplers.parameterization import Denoiser
from refsd.samplers.step import Callback, StepNoise, intervals


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
    for i, sigma, sigma_next in intervals(sigmas):
        denoised = model(x, sigma)
        if callback:
            callback(i, sigma, x, denoised)
        if sigma_next == 0:
            return denoised
        down, up, scale = flow_ancestral_step(sigma, sigma_next, eta)
        sigma_mid = math.sqrt(sigma * down)
        ratio = sigma_mid / sigma
        denoised_2 = model(combine(ratio, x, 1 - ratio, denoised), sigma_mid)
        # scale (x + d_2 dt),  d_2 = (x_2 - denoised_2) / sigma_mid,  x_2 = ratio x + (1 - ratio) denoised
        share = scale * (down - sigma) / sigma_mid
        up, n = fresh(s_noise * up, sigma, sigma_next, noise)
        x = combine(scale + share * ratio, x, share * (1 - ratio), denoised, -share, denoised_2, up, n)
    return x
