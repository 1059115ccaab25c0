"""The noise levels that a model was trained on, and the map between sigma and timestep.

A model trained on 1000 noise levels reads a timestep t in 0..999; a sampler works with sigma, the
standard deviation of the noise over that of the data. Maps between the two either interpolate log sigma
linearly between the levels, so that t is a real number (k-diffusion's quantize=False, as in
stable-diffusion.cpp), or take the nearest level, so that t is an integer (ComfyUI and Forge). A flow
model's sigma is the share of noise in x, 0 .. 1, and its map is a formula.

Everything here is float64. stable-diffusion.cpp computes alphas_cumprod, sigmas and t in float32:
its sigmas differ from these by up to 1.3e-5 relative, at the largest by 1e-6.
"""

import math
from typing import Any, Protocol

import numpy as np

from refsd.samplers.betas import scaled_linear


class Levels(Protocol):
    """A model's noise levels.

    sigmas: [T], rising: the noise level of each timestep 0 .. T-1
    """

    sigmas: np.ndarray

    def to_sigma(self, t: Any) -> Any:
        """Return the noise level of a timestep. t: scalar or [N], 0 .. T-1 -> the shape of t, float64"""
        ...

    def to_t(self, sigma: float) -> float:
        """Return the timestep that the network gets at this noise level."""
        ...


def scaled_linear_alphas_cumprod(
    beta_start: float = 0.00085, beta_end: float = 0.012, steps: int = 1000
) -> np.ndarray:
    """Compute the signal kept after each step of Stable Diffusion's forward process.

        beta_t = (sqrt(beta_start) + t / (steps - 1) * (sqrt(beta_end) - sqrt(beta_start)))^2
        alphas_cumprod_t = prod_{s <= t} (1 - beta_s)

    -> [steps], float64, falling from 0.99915 to 0.00466
    """
    return np.cumprod(1.0 - scaled_linear(steps, beta_start, beta_end))


def training_sigmas(alphas_cumprod: np.ndarray) -> np.ndarray:
    """Compute the noise levels of the training: sigma_t = sqrt((1 - abar_t) / abar_t).

    alphas_cumprod: [T] -> [T], float64, rising (SD 1.x: 0.0292 .. 14.6146)
    Source: Karras et al. 2022, appendix C.3.2 (DDIM's sigma); k-diffusion external.py, DiscreteEpsDDPMDenoiser.
    """
    return np.sqrt((1.0 - alphas_cumprod) / alphas_cumprod)


def sigma_to_t(sigma: float, levels: np.ndarray) -> float:
    """Find the real timestep whose noise level is sigma: linear in log sigma, clamped to 0 .. T-1.

    levels: [T], rising
    Source: k-diffusion external.py, DiscreteSchedule.sigma_to_t(quantize=False).
    """
    return float(np.interp(np.log(sigma), np.log(levels), np.arange(len(levels))))


def t_to_sigma(t: float | np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Compute the noise level of a real timestep: log sigma is interpolated linearly between levels.

    t: scalar or [N], 0 .. T-1; levels: [T], rising -> the shape of t, float64
    Source: k-diffusion external.py, DiscreteSchedule.t_to_sigma.
    """
    return np.exp(np.interp(t, np.arange(len(levels)), np.log(levels)))


def nearest_t(sigma, levels: np.ndarray):
    """Find the trained timestep whose level is nearest to sigma, in log sigma; of two equally near, the lower.

    sigma: scalar or [N]; levels: [T], rising -> the shape of sigma, int
    Source: k-diffusion external.py, DiscreteSchedule.sigma_to_t(quantize=True); ComfyUI model_sampling.py.
    """
    return np.argmin(np.abs(np.log(sigma)[..., None] - np.log(levels)), axis=-1)


def zero_terminal_snr(alphas_cumprod: np.ndarray) -> np.ndarray:
    """Shift and stretch the levels so that no signal is left at the last one.

        s_t = sqrt(abar_t);  s_t <- (s_t - s_{T-1}) s_0 / (s_0 - s_{T-1});  abar_t = s_t^2

    alphas_cumprod: [T] -> [T], the last one 0: its sigma is infinite, and engines replace it
    Source: Lin et al. 2023 (Common diffusion noise schedules are flawed), algorithm 1.
    """
    s = np.sqrt(alphas_cumprod)
    return ((s - s[-1]) * s[0] / (s[0] - s[-1])) ** 2


class DiscreteLevels:
    """A discrete-time model's levels; timesteps between them are real numbers."""

    def __init__(self, sigmas: np.ndarray):
        self.sigmas = sigmas

    def to_sigma(self, t):
        return t_to_sigma(t, self.sigmas)

    def to_t(self, sigma: float) -> float:
        return sigma_to_t(sigma, self.sigmas)


# Stable Diffusion 1.x, 2.x and SDXL.
SD_LEVELS = DiscreteLevels(training_sigmas(scaled_linear_alphas_cumprod()))


class NearestLevels(DiscreteLevels):
    """A discrete-time model's levels; the network only gets timesteps of the training."""

    def to_t(self, sigma: float) -> float:
        return float(nearest_t(sigma, self.sigmas))


def shift_snr(t, shift: float):
    """Shift a flow's time towards noise: shift t / (1 + (shift - 1) t). Source: Esser et al. 2024 (SD3), eq. 23."""
    return shift * t / (1 + (shift - 1) * t)


def shift_exponential(t, mu: float):
    """Shift a flow's time by e^mu: e^mu / (e^mu + 1 / t - 1), t > 0. Source: black-forest-labs/flux, time_shift."""
    return math.exp(mu) / (math.exp(mu) + 1 / t - 1)


class FlowLevels:
    """Rectified flow's levels: sigma = shift_snr((t + 1) / 1000), the share of noise in x.

    shift:      3 for SD3 and Z-Image; e^mu for Flux
    multiplier: the network's timestep is sigma * multiplier: 1000 for SD3, 1 for Flux

    Source: Esser et al. 2024; stable-diffusion.cpp DiscreteFlowDenoiser; ComfyUI ModelSamplingDiscreteFlow.
    """

    def __init__(self, shift: float = 3.0, multiplier: float = 1000.0, steps: int = 1000):
        self.shift, self.multiplier, self.steps = shift, multiplier, steps
        self.sigmas = self.to_sigma(np.arange(steps))

    def to_sigma(self, t):
        return shift_snr((np.asarray(t, np.float64) + 1) / self.steps, self.shift)

    def to_t(self, sigma: float) -> float:
        return sigma * self.multiplier


class EdmLevels:
    """Continuous levels of a model conditioned on ln(sigma) / 4 (EDM v-prediction: Playground 2.5, CosXL).

    sigmas: a table of the range, evenly spaced in ln sigma
    Source: Karras et al. 2022, table 1, c_noise; ComfyUI ModelSamplingContinuousEDM.
    """

    def __init__(self, sigma_min: float = 0.002, sigma_max: float = 120.0, steps: int = 1000):
        self.sigmas = np.exp(np.linspace(math.log(sigma_min), math.log(sigma_max), steps))

    def to_sigma(self, t):
        return t_to_sigma(t, self.sigmas)

    def to_t(self, sigma: float) -> float:
        return 0.25 * math.log(sigma)
