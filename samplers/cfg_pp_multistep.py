"""CFG++ for the solvers of higher order: ComfyUI's, each with another place for the prediction without prompt."""

import math

import numpy as np

from refsd.kernels.combine import combine
from refsd.kernels.combine_twice import combine_twice
from refsd.samplers.ancestral import NONE, ancestral_step, fresh
from refsd.samplers.cfg_pp import GuidedDenoiser
from refsd.samplers.res import phi_1, phi_2
from refsd.samplers.step import Callback, StepNoise, intervals, no_noise


def dpmpp_2s_ancestral_cfg_pp(
    model: GuidedDenoiser,
    x: np.ndarray,
    sigmas: np.ndarray,
    noise: StepNoise,
    callback: Callback | None = None,
    eta: float = 1.0,
    s_noise: float = 1.0,
) -> np.ndarray:
    """dpmpp_2s_ancestral of uncond, and after each step the guidance it began with: + denoised - uncond.

    model:  gives denoised with guidance and without the prompt
    x:      latents at sigmas[0]
    sigmas: [n + 1], falling; a step to 0 takes denoised
    noise:  drawn from once a step, not where the next sigma is 0
    -> latents at sigmas[-1], dtype of x
    Source: ComfyUI sample_dpmpp_2s_ancestral_cfg_pp, at 02159d81.
    """
    for i, sigma, sigma_next in intervals(sigmas):
        denoised, uncond = model(x, sigma)
        if callback:
            callback(i, sigma, x, denoised)
        down, up, _ = ancestral_step(sigma, sigma_next, eta)
        up, n = fresh(s_noise * up, sigma, sigma_next, noise)
        if down == 0:
            x = combine(1.0, denoised, up, n)
        else:
            sigma_mid = math.sqrt(sigma * down)
            ratio = sigma_mid / sigma
            _, uncond_2 = model(combine(ratio, x, 1 - ratio, uncond), sigma_mid)
            ratio = down / sigma
            x = combine(ratio, x, 1 - ratio, uncond_2, 1.0, denoised, -1.0, uncond, up, n)
    return x


def dpmpp_2s_ancestral_cfg_pp_first(
    model: GuidedDenoiser,
    x: np.ndarray,
    sigmas: np.ndarray,
    noise: StepNoise,
    callback: Callback | None = None,
    eta: float = 1.0,
    s_noise: float = 1.0,
) -> np.ndarray:
    """ComfyUI's other one: dpmpp_2s_ancestral of denoised from x + denoised - uncond, in both its stages.

    In the second uncond is the middle's, so that without guidance this is not dpmpp_2s_ancestral.

    Arguments: dpmpp_2s_ancestral_cfg_pp's.
    Source: ComfyUI sample_dpmpp_2s_ancestral_cfg_pp, at 8622f33 of patientx/ComfyUI-Zluda.
    """
    for i, sigma, sigma_next in intervals(sigmas):
        denoised, uncond = model(x, sigma)
        if callback:
            callback(i, sigma, x, denoised)
        down, up, _ = ancestral_step(sigma, sigma_next, eta)
        up, n = fresh(s_noise * up, sigma, sigma_next, noise)
        if down == 0:
            x = combine(1.0, denoised, up, n)
        else:
            sigma_mid = math.sqrt(sigma * down)
            # ratio (x + denoised - uncond) + (1 - ratio) denoised, the ratios being e^(-h/2) and e^-h
            ratio = sigma_mid / sigma
            denoised_2, uncond_2 = model(combine(ratio, x, 1.0, denoised, -ratio, uncond), sigma_mid)
            ratio = down / sigma
            x = combine(ratio, x, ratio, denoised, -ratio, uncond_2, 1 - ratio, denoised_2, up, n)
    return x


def dpmpp_2m_cfg_pp(
    model: GuidedDenoiser,
    x: np.ndarray,
    sigmas: np.ndarray,
    noise: StepNoise = no_noise,
    callback: Callback | None = None,
) -> np.ndarray:
    """dpmpp_2m's correction by the last uncond, not by the last denoised.

        x <- denoised + e^-h (x - uncond) + (1 - e^-h) (denoised - uncond_last) / 2r,  r = h_last / h

    Arguments: dpmpp_2s_ancestral_cfg_pp's. noise: never drawn from
    The first step, and one to 0, is euler_cfg_pp's.
    Source: ComfyUI sample_dpmpp_2m_cfg_pp.
    """
    last, h_last = None, 0.0
    for i, sigma, sigma_next in intervals(sigmas):
        denoised, uncond = model(x, sigma)
        if callback:
            callback(i, sigma, x, denoised)
        if sigma_next == 0:
            return denoised
        h = math.log(sigma / sigma_next)
        ratio = sigma_next / sigma
        c = (1 - ratio) * h / (2 * h_last) if last is not None else 0.0
        x = combine(ratio, x, 1 + c, denoised, -ratio, uncond, -c, uncond if last is None else last)
        last, h_last = uncond, h
    return x


def res_multistep_cfg_pp(
    model: GuidedDenoiser,
    x: np.ndarray,
    sigmas: np.ndarray,
    noise: StepNoise,
    callback: Callback | None = None,
    eta: float = 0.0,
    s_noise: float = 1.0,
) -> np.ndarray:
    """res_multistep of uncond, from x + denoised - uncond.

    Arguments: dpmpp_2s_ancestral_cfg_pp's. noise: where eta is not 0. The first step, and one to 0, is
    euler_ancestral_cfg_pp's.
    Source: ComfyUI sample_res_multistep_cfg_pp; with eta 1 sample_res_multistep_ancestral_cfg_pp.
    """
    last, down_last, sigma_last = None, 0.0, 0.0
    for i, sigma, sigma_next in intervals(sigmas):
        denoised, uncond = model(x, sigma)
        if callback:
            callback(i, sigma, x, denoised)
        down, up, _ = ancestral_step(sigma, sigma_next, eta)
        up, n = fresh(s_noise * up, sigma, sigma_next, noise) if eta else NONE
        ratio = down / sigma
        if last is None or down == 0:
            x = combine(1.0, denoised, ratio, x, -ratio, uncond, up, n)
        else:
            h = math.log(sigma / down)
            b2 = phi_2(h) * h / math.log(down_last / sigma_last)
            b1 = phi_1(h) - b2
            x = combine(ratio, x, ratio, denoised, h * b1 - ratio, uncond, h * b2, last, up, n)
        last, down_last, sigma_last = uncond, down, sigma
    return x


def res_multistep_ancestral_cfg_pp(
    model: GuidedDenoiser,
    x: np.ndarray,
    sigmas: np.ndarray,
    noise: StepNoise,
    callback: Callback | None = None,
    eta: float = 1.0,
    s_noise: float = 1.0,
) -> np.ndarray:
    """res_multistep_cfg_pp with eta 1. Source: ComfyUI sample_res_multistep_ancestral_cfg_pp."""
    return res_multistep_cfg_pp(model, x, sigmas, noise, callback, eta, s_noise)


def gradient_estimation_cfg_pp(
    model: GuidedDenoiser,
    x: np.ndarray,
    sigmas: np.ndarray,
    noise: StepNoise = no_noise,
    callback: Callback | None = None,
    gamma: float = 2.0,
) -> np.ndarray:
    """euler_cfg_pp's step, and (gamma - 1) (d - d_last) (sigma_next - sigma) more, d = (x - uncond) / sigma.

    Arguments: dpmpp_2s_ancestral_cfg_pp's. noise: never drawn from
    Source: ComfyUI sample_gradient_estimation_cfg_pp.
    """
    d_last = None
    for i, sigma, sigma_next in intervals(sigmas):
        denoised, uncond = model(x, sigma)
        if callback:
            callback(i, sigma, x, denoised)
        if sigma_next == 0:
            return denoised
        more = (gamma - 1) * (sigma_next - sigma) if d_last is not None else 0.0
        # d = (x - uncond) / sigma;  (sigma_next + more) d + denoised - more d_last
        weights = np.array([1 / sigma, -1 / sigma, 0.0, 0.0, sigma_next + more, 0.0, 0.0, 1.0, -more])
        arrays = [x, uncond, denoised, denoised if d_last is None else d_last]
        d_last, x = combine_twice(weights, arrays)
    return x
