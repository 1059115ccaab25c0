"""Betas: how much noise each training step of a discrete-time diffusion model adds.

beta_t is the variance added at step t. The signal kept after step t is prod_{s <= t} (1 - beta_s), see levels.py.
Each function takes the number of steps and returns betas, [steps], float64, in 0 .. 1.
"""

import math
from collections.abc import Callable

import numpy as np

# The largest beta in `from_signal`.
_LARGEST = 0.999


def linear(steps: int, start: float, end: float) -> np.ndarray:
    """Space betas evenly. Source: Ho et al. 2020 (DDPM), section 4."""
    return np.linspace(start, end, steps)


def scaled_linear(steps: int, start: float, end: float) -> np.ndarray:
    """Space the square roots of the betas evenly.

    Source: CompVis latent-diffusion, ldm/modules/diffusionmodules/util.py, make_beta_schedule("linear").
    """
    return np.linspace(np.sqrt(start), np.sqrt(end), steps) ** 2


def sigmoid(steps: int, start: float, end: float) -> np.ndarray:
    """Space betas along a sigmoid: start + (end - start) / (1 + e^-x), x = -6 .. 6.

    Source: Xu et al. 2022 (GeoDiff); diffusers DDPMScheduler, "sigmoid".
    """
    return start + (end - start) / (1 + np.exp(-np.linspace(-6, 6, steps)))


def from_signal(steps: int, kept: Callable[[float], float]) -> np.ndarray:
    """Derive betas from the signal kept: beta_t = min(1 - kept((t + 1) / T) / kept(t / T), 0.999).

    kept: (time 0 .. 1) -> the share of the signal's variance that is left
    Source: diffusers, betas_for_alpha_bar.
    """
    curve = np.array([kept(t / steps) for t in range(steps + 1)])
    return np.minimum(1 - curve[1:] / curve[:-1], _LARGEST)


def squaredcos_cap_v2(steps: int) -> np.ndarray:
    """Use signal(t) = cos(pi / 2 * (t + 0.008) / 1.008)^2. Source: Nichol & Dhariwal 2021, eq. 17."""
    return from_signal(steps, lambda t: math.cos((t + 0.008) / 1.008 * math.pi / 2) ** 2)


def exponential(steps: int) -> np.ndarray:
    """Use signal(t) = e^(-12 t). Source: diffusers, betas_for_alpha_bar("exp")."""
    return from_signal(steps, lambda t: math.exp(-12 * t))


def laplace(steps: int) -> np.ndarray:
    """Use signal(t) = sqrt(s / (1 + s)), s = a^(-1/2) if t <= 1/2 else a^(1/2), a = 1 - 2 |1/2 - t| + 1e-6.

    Source: Hang et al. 2024 (Improved noise schedule for diffusion training); diffusers, betas_for_alpha_bar.
    """

    def signal(t: float) -> float:
        log_snr = -0.5 * math.copysign(1, 0.5 - t) * math.log(1 - 2 * abs(0.5 - t) + 1e-6)
        return math.sqrt(1 / (1 + math.exp(-log_snr)))

    return from_signal(steps, signal)


# diffusers' beta_schedule -> (steps, start, end) -> [steps]
BETAS: dict[str, Callable[[int, float, float], np.ndarray]] = {
    "linear": linear,
    "scaled_linear": scaled_linear,
    "sigmoid": sigmoid,
    "squaredcos_cap_v2": lambda steps, start, end: squaredcos_cap_v2(steps),
    "exp": lambda steps, start, end: exponential(steps),
    "laplace": lambda steps, start, end: laplace(steps),
}
