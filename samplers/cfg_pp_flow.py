import math

import numpy as np

from refsd.kernels.combine import combine
from refsd.samplers.ancestral import NONE, ancestral_step, flow_ancestral_step, fresh
from refsd.samplers.cfg_pp import GuidedDenoiser
from refsd.samplers.step import Callback, StepNoise, intervals, no_noise


def euler_cfg_pp_flow(
    model: GuidedDenoiser,
    x: np.ndarray,
    sigmas: np.ndarray,
    noise: StepNoise = no_noise,
    callback: Callback | None = None,
) -> np.ndarray:
    """euler_cfg_pp for a rectified flow, whose uncond enters with the signal's weight.

        x <- (1 - sigma_next) denoised + sigma_next (x - (1 - sigma) uncond) / sigma

    Arguments: euler_cfg_pp's. Source: ComfyUI sample_euler_cfg_pp.
    """
    return euler_ancestral_cfg_pp_flow(model, x, sigmas, noise, callback, eta=0.0)


def euler_ancestral_cfg_pp_flow(
    model: GuidedDenoiser,
    x: np.ndarray,
    sigmas: np.ndarray,
    noise: StepNoise,
    callback: Callback | None = None,
    eta: float = 1.0,
    s_noise: float = 1.0,
) -> np.ndarray:
    """The same with ancestral_step in sigma / (1 - sigma), and (1 - sigma_next) up s_noise n added.

    From sigma 1, where that is infinite, all of the noise is new, whatever eta.

    Arguments: euler_ancestral_cfg_pp's. noise: drawn from where eta and s_noise are not 0
    Source: ComfyUI sample_euler_ancestral_cfg_pp.
    """
    for i, sigma, sigma_next in intervals(sigmas):
        denoised, uncond = model(x, sigma)
        if callback:
            callback(i, sigma, x, denoised)
        if sigma_next == 0:
            return denoised
        signal, signal_next = 1 - sigma, 1 - sigma_next
        down, up = 0.0, sigma_next / signal_next
        if signal > 0 or eta == 0:
            down, up, _ = ancestral_step(sigma / signal if signal > 0 else 1.0, sigma_next / signal_next, eta)
        # signal_next (denoised + down d + up n),  d = (x - signal uncond) / sigma
        ratio = signal_next * down / sigma
        up, n = (signal_next * up * s_noise, noise(sigma, sigma_next)) if eta and s_noise else NONE
        x = combine(signal_next, denoised, ratio, x, -ratio * signal, uncond, up, n)
    return x


def dpmpp_2s_ancestral_cfg_pp_flow(
    model: GuidedDenoiser,
    x: np.ndarray,
    sigmas: np.ndarray,
    noise: StepNoise,
    callback: Callback | None = None,
    eta: float = 1.0,
    s_noise: float = 1.0,
) -> np.ndarray:
    """dpmpp_2s_ancestral_flow of uncond, and after each step (1 - sigma_next) (denoised - uncond).

    From 1 on the middle is 0.9999.

    Arguments: euler_ancestral_cfg_pp's. noise: drawn from once a step, not where the next sigma is 0
    Source: ComfyUI sample_dpmpp_2s_ancestral_RF_cfg_pp, at 02159d81.
    """
    for i, sigma, sigma_next in intervals(sigmas):
        denoised, uncond = model(x, sigma)
        if callback:
            callback(i, sigma, x, denoised)
        if sigma_next == 0:
            return denoised
        down, up, scale = flow_ancestral_step(sigma, sigma_next, eta)
        odds = math.sqrt((1 - sigma) / sigma * (1 - down) / down)
        ratio = (1 / (odds + 1) if sigma < 1 else 0.9999) / sigma
        _, uncond_2 = model(combine(ratio, x, 1 - ratio, uncond), ratio * sigma)
        ratio, signal = down / sigma, 1 - sigma_next
        up, n = fresh(s_noise * up, sigma, sigma_next, noise) if eta else NONE
        x = combine(scale * ratio, x, scale * (1 - ratio), uncond_2, signal, denoised, -signal, uncond, up, n)
    return x
