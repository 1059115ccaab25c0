"""CFG++ for the solvers of higher order: ComfyUI's, each with another place for the prediction without prompt."""

import math

import numpy as np

from refsd.samplers.ancestral import ancestral_step, renoised
from refsd.samplers.cfg_pp import GuidedDenoiser
from refsd.samplers.res import phi_1, phi_2
from refsd.samplers.step import Callback, StepNoise, no_noise


def dpmpp_2s_ancestral_cfg_pp(
    model: GuidedDenoiser,
    x: np.ndarray,
    sigmas: np.ndarray,
    noise: StepNoise,
    callback: Callback | None = None,
    eta: float = 1.0,
    s_noise: float = 1.0,
) -> np.ndarray:
    """dpmpp_2s_ancestral from x + denoised - uncond instead of x, in both its stages; uncond is the latest one.

    model:  gives denoised with guidance and without the prompt
    x:      latents at sigmas[0]
    sigmas: [n + 1], falling; a step to 0 takes denoised
    noise:  drawn from once a step, not where the next sigma is 0
    -> latents at sigmas[-1], dtype of x
    Source: ComfyUI sample_dpmpp_2s_ancestral_cfg_pp.
    """
    for i in range(len(sigmas) - 1):
        sigma, sigma_next = float(sigmas[i]), float(sigmas[i + 1])
        denoised, uncond = model(x, sigma)
        if callback:
            callback(i, sigma, x, denoised)
        step = ancestral_step(sigma, sigma_next, eta)
        if step.down == 0:
            x = denoised
        else:
            h = math.log(sigma / step.down)
            sigma_mid = math.sqrt(sigma * step.down)
            x_2 = sigma_mid / sigma * (x + (denoised - uncond)) - math.expm1(-h / 2) * denoised
            denoised_2, uncond = model(x_2, sigma_mid)
            x = step.down / sigma * (x + (denoised - uncond)) - math.expm1(-h) * denoised_2
        x = renoised(x, step, sigma, sigma_next, noise, s_noise)
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
    for i in range(len(sigmas) - 1):
        sigma, sigma_next = float(sigmas[i]), float(sigmas[i + 1])
        denoised, uncond = model(x, sigma)
        if callback:
            callback(i, sigma, x, denoised)
        if sigma_next == 0:
            return denoised
        h = math.log(sigma / sigma_next)
        x = denoised + sigma_next / sigma * (x - uncond)
        if last is not None:
            x = x - math.expm1(-h) * h / (2 * h_last) * (denoised - last)
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
    for i in range(len(sigmas) - 1):
        sigma, sigma_next = float(sigmas[i]), float(sigmas[i + 1])
        denoised, uncond = model(x, sigma)
        if callback:
            callback(i, sigma, x, denoised)
        step = ancestral_step(sigma, sigma_next, eta)
        if last is None or step.down == 0:
            x = denoised + (x - uncond) / sigma * step.down
        else:
            h = math.log(sigma / step.down)
            b2 = phi_2(h) * h / math.log(down_last / sigma_last)
            y = x + (denoised - uncond)
            x = step.down / sigma * y + h * (phi_1(h) - b2) * uncond + h * b2 * last
        if eta:
            x = renoised(x, step, sigma, sigma_next, noise, s_noise)
        last, down_last, sigma_last = uncond, step.down, sigma
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
    for i in range(len(sigmas) - 1):
        sigma, sigma_next = float(sigmas[i]), float(sigmas[i + 1])
        denoised, uncond = model(x, sigma)
        if callback:
            callback(i, sigma, x, denoised)
        if sigma_next == 0:
            return denoised
        d = (x - uncond) / sigma
        x = denoised + d * sigma_next
        if d_last is not None:
            x = x + (gamma - 1) * (d - d_last) * (sigma_next - sigma)
        d_last = d
    return x
