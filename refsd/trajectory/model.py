"""The model of the trajectory cases: denoisers of two known distributions, under guidance.

signal: the weight a of the data in x = a data + sigma noise: 1, or a flow's 1 - sigma
"""

import numpy as np

from refsd.samplers.guidance import guide

_VARIANCE = 0.25


def uncond(x: np.ndarray, sigma: float, signal: float = 1.0) -> np.ndarray:
    """What data of unit variance are on average, given x: a x / (a^2 + sigma^2)."""
    return x * (signal / (signal**2 + sigma**2))


def cond(x: np.ndarray, sigma: float, signal: float = 1.0) -> np.ndarray:
    """The same of two bells at -1 and 1, of variance v = 1/4.

        (v a x + sigma^2 tanh(a x / s)) / s,  s = v a^2 + sigma^2

    Source: Bayes' rule for a mixture of two Gaussians.
    """
    s = sigma**2 + _VARIANCE * signal**2
    return x * (_VARIANCE * signal / s) + np.tanh(x * (signal / s)) * (sigma**2 / s)


def denoised(x: np.ndarray, sigma: float, guidance: float, signal: float = 1.0) -> np.ndarray:
    """uncond + guidance (cond - uncond), in the dtype of x."""
    return guide(cond(x, sigma, signal), uncond(x, sigma, signal), guidance)


def limit(x: np.ndarray, sigma: float, guidance: float, u: float, flow: bool = False) -> np.ndarray:
    """How far an honest engine may be from `denoised` at its own x, when sigma is off by 4 u.

    16 u of each term's size, and what moving ln sigma does; guidance 0: from `uncond`. float64, the shape of x
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
