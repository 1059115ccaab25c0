"""The analytic model of the trajectory cases: exact denoisers of two known distributions, and their guidance.

signal: the weight a of the data in x = a data + sigma noise: 1, or 1 - sigma for a flow
"""

import numpy as np

from refsd.samplers.guidance import guide

_VARIANCE = 0.25


def uncond(x: np.ndarray, sigma: float, signal: float = 1.0) -> np.ndarray:
    """Denoise Gaussian data of mean 0 and variance 1: E[data | x] = a x / (a^2 + sigma^2)."""
    return x * (signal / (signal**2 + sigma**2))


def cond(x: np.ndarray, sigma: float, signal: float = 1.0) -> np.ndarray:
    """Denoise data of a mixture of two Gaussians at -1 and 1, with variance v = 1/4.

        (v a x + sigma^2 tanh(a x / s)) / s,  s = v a^2 + sigma^2

    Source: Bayes' rule for a mixture of two Gaussians.
    """
    s = sigma**2 + _VARIANCE * signal**2
    return x * (_VARIANCE * signal / s) + np.tanh(x * (signal / s)) * (sigma**2 / s)


def denoised(x: np.ndarray, sigma: float, guidance: float, signal: float = 1.0) -> np.ndarray:
    """Compute uncond + guidance (cond - uncond), in the dtype of x."""
    return guide(cond(x, sigma, signal), uncond(x, sigma, signal), guidance)


def limit(x: np.ndarray, sigma: float, guidance: float, u: float, flow: bool = False) -> np.ndarray:
    """Bound the error of an honest engine's `denoised` at its own x, if sigma has a relative error of 4 u.

    The bound is 16 u times each term's size, plus the effect of the error in ln sigma. guidance 0 bounds `uncond`.
    -> float64, the shape of x
    """

    def signal(sigma: float) -> float:
        return 1 - sigma if flow else 1.0

    a = signal(sigma)
    size = np.abs(uncond(x, sigma, a)) * (1 + abs(guidance)) + np.abs(guidance) * (
        np.abs(x) * (_VARIANCE * abs(a) / (sigma**2 + _VARIANCE * a**2)) + 1
    )
    delta = 1e-6
    up, down = sigma * (1 + delta), sigma * (1 - delta)
    slope = denoised(x, up, guidance, signal(up)) - denoised(x, down, guidance, signal(down))
    return 16 * u * size + 4 * u * np.abs(slope) / (2 * delta)
