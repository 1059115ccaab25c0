"""The model of the trajectory cases: denoisers of two known distributions, under guidance."""

import numpy as np

from refsd.samplers.guidance import guide

_VARIANCE = 0.25


def uncond(x: np.ndarray, sigma: float) -> np.ndarray:
    """What data of unit variance are on average, given x: x / (1 + sigma^2)."""
    return x * (1 / (1 + sigma**2))


def cond(x: np.ndarray, sigma: float) -> np.ndarray:
    """The same of two bells at -1 and 1, of variance v = 1/4: (v x + sigma^2 tanh(x / s)) / s, s = sigma^2 + v.

    Source: Bayes' rule for a mixture of two Gaussians.
    """
    s = sigma**2 + _VARIANCE
    return x * (_VARIANCE / s) + np.tanh(x * (1 / s)) * (sigma**2 / s)


def denoised(x: np.ndarray, sigma: float, guidance: float) -> np.ndarray:
    """uncond + guidance (cond - uncond), in the dtype of x."""
    return guide(cond(x, sigma), uncond(x, sigma), guidance)


def limit(x: np.ndarray, sigma: float, guidance: float, u: float) -> np.ndarray:
    """How far an honest engine may be from `denoised` at its own x, when sigma is off by 4 u.

    16 u of each term's size, and what moving ln sigma does; float64, the shape of x
    """
    size = np.abs(uncond(x, sigma)) * (1 + abs(guidance)) + np.abs(guidance) * (
        np.abs(x) * (_VARIANCE / (sigma**2 + _VARIANCE)) + 1
    )
    delta = 1e-6
    slope = denoised(x, sigma * (1 + delta), guidance) - denoised(x, sigma * (1 - delta), guidance)
    return 16 * u * size + 4 * u * np.abs(slope) / (2 * delta)
