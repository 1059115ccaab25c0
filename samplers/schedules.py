"""Sigma schedules, and the map between sigma and timestep of a discrete-time model.

A model trained on 1000 noise levels knows a timestep t in 0..999; a sampler works with sigma, the
standard deviation of the noise over that of the data. Both maps run through log sigma, linearly
between the levels, so that t is a real number (k-diffusion's quantize=False, which stable-diffusion.cpp
follows; ComfyUI and Forge round t to the nearest integer).

Everything here is float64. stable-diffusion.cpp computes alphas_cumprod, sigmas and t in float32:
its sigmas differ from these by up to 1.3e-5 relative, at the largest by 1e-6.
"""

from collections.abc import Callable

import numpy as np

Schedule = Callable[[int, np.ndarray], np.ndarray]


def scaled_linear_alphas_cumprod(
    beta_start: float = 0.00085, beta_end: float = 0.012, steps: int = 1000
) -> np.ndarray:
    """Signal kept after each step of Stable Diffusion's forward process.

        beta_t = (sqrt(beta_start) + t / (steps - 1) * (sqrt(beta_end) - sqrt(beta_start)))^2
        alphas_cumprod_t = prod_{s <= t} (1 - beta_s)

    -> [steps], float64, falling from 0.99915 to 0.00466
    Source: CompVis latent-diffusion, ldm/modules/diffusionmodules/util.py, make_beta_schedule("linear").
    """
    betas = np.linspace(np.sqrt(beta_start), np.sqrt(beta_end), steps) ** 2
    return np.cumprod(1.0 - betas)


def training_sigmas(alphas_cumprod: np.ndarray) -> np.ndarray:
    """Noise levels the model was trained on: sigma_t = sqrt((1 - abar_t) / abar_t).

    alphas_cumprod: [T] -> [T], float64, rising (SD 1.x: 0.0292 .. 14.6146)
    Source: Karras et al. 2022, appendix C.3.2 (DDIM's sigma); k-diffusion external.py, DiscreteEpsDDPMDenoiser.
    """
    return np.sqrt((1.0 - alphas_cumprod) / alphas_cumprod)


def sigma_to_t(sigma: float, levels: np.ndarray) -> float:
    """The real timestep whose noise level is sigma: linear in log sigma, clamped to 0 .. T-1.

    levels: [T], rising
    Source: k-diffusion external.py, DiscreteSchedule.sigma_to_t(quantize=False).
    """
    return float(np.interp(np.log(sigma), np.log(levels), np.arange(len(levels))))


def t_to_sigma(t: float | np.ndarray, levels: np.ndarray) -> np.ndarray:
    """The noise level of a real timestep: exp of log sigma, linear between neighbours.

    t: scalar or [N], 0 .. T-1; levels: [T], rising -> the shape of t, float64
    Source: k-diffusion external.py, DiscreteSchedule.t_to_sigma.
    """
    return np.exp(np.interp(t, np.arange(len(levels)), np.log(levels)))


def discrete(n: int, levels: np.ndarray) -> np.ndarray:
    """Timesteps spread evenly from T-1 to 0, both ends taken, then zero.

        sigma_i = t_to_sigma((T - 1) * (1 - i / (n - 1))),  sigma_n = 0

    levels: [T] -> [n + 1], float64, falling. ComfyUI and A1111 call it normal.
    Source: k-diffusion external.py, DiscreteSchedule.get_sigmas.
    """
    return np.append(t_to_sigma(np.linspace(len(levels) - 1, 0, n), levels), 0.0)


def karras(n: int, levels: np.ndarray, rho: float = 7.0) -> np.ndarray:
    """Levels spread evenly in sigma^(1/rho), then zero.

        sigma_i = (smax^(1/rho) + i / (n - 1) * (smin^(1/rho) - smax^(1/rho)))^rho,  sigma_n = 0

    levels: [T] -> [n + 1], float64, falling. For n = 1 sigma_0 is smax; stable-diffusion.cpp divides 0 by 0.
    Source: Karras et al. 2022, eq. 5; k-diffusion sampling.py, get_sigmas_karras.
    """
    smin, smax = levels[0] ** (1 / rho), levels[-1] ** (1 / rho)
    return np.append(np.linspace(smax, smin, n) ** rho, 0.0)


SCHEDULES: dict[str, Schedule] = {"discrete": discrete, "karras": karras}
