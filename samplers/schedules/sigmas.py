"""Schedules that are formulas in sigma, between the model's lowest and highest level.

Each ends with 0. All take the number of steps and the model's levels, and return [n + 1] float64, falling.
"""

import math

import numpy as np

from refsd.samplers.levels import Levels


def _range(levels: Levels) -> tuple[float, float]:
    return float(levels.sigmas[0]), float(levels.sigmas[-1])


def karras(n: int, levels: Levels, rho: float = 7.0) -> np.ndarray:
    """Space sigmas evenly in sigma^(1/rho).

        sigma_i = (smax^(1/rho) + i / (n - 1) * (smin^(1/rho) - smax^(1/rho)))^rho

    For n = 1, sigma_0 is smax; stable-diffusion.cpp divides 0 by 0.
    Source: Karras et al. 2022, eq. 5; k-diffusion sampling.py, get_sigmas_karras.
    """
    smin, smax = (s ** (1 / rho) for s in _range(levels))
    return np.append(np.linspace(smax, smin, n) ** rho, 0.0)


def exponential(n: int, levels: Levels) -> np.ndarray:
    """Space sigmas evenly in ln sigma. Source: k-diffusion sampling.py, get_sigmas_exponential."""
    return polyexponential(n, levels, 1.0)


def polyexponential(n: int, levels: Levels, rho: float = 1.0) -> np.ndarray:
    """Let ln sigma follow a power: ln smin + (1 - i / (n - 1))^rho (ln smax - ln smin).

    Source: k-diffusion sampling.py, get_sigmas_polyexponential.
    """
    smin, smax = _range(levels)
    ramp = np.linspace(1, 0, n) ** rho
    return np.append(np.exp(ramp * (math.log(smax) - math.log(smin)) + math.log(smin)), 0.0)


def vp(n: int, levels: Levels, beta_d: float = 19.9, beta_min: float = 0.1, eps_s: float = 1e-3) -> np.ndarray:
    """Space sigmas evenly in the time of the variance-preserving SDE; the model's levels are not used.

        sigma(t) = sqrt(exp(beta_d t^2 / 2 + beta_min t) - 1), t evenly from 1 to eps_s

    Source: Song et al. 2021, appendix C; k-diffusion sampling.py, get_sigmas_vp.
    """
    t = np.linspace(1, eps_s, n)
    return np.append(np.sqrt(np.expm1(beta_d * t**2 / 2 + beta_min * t)), 0.0)


def kl_optimal(n: int, levels: Levels) -> np.ndarray:
    """Space sigmas evenly in arctan sigma: tan(i / (n - 1) atan smin + (1 - i / (n - 1)) atan smax).

    For n = 1, sigma_0 is smax; ComfyUI divides 0 by 0. Forge and A1111 divide by n, and end at smin instead of 0:
    kl_optimal_to_smin.
    Source: Sabour et al. 2024 (Align Your Steps), theorem 3.1; ComfyUI, stable-diffusion.cpp.
    """
    smin, smax = _range(levels)
    return np.append(np.tan(np.linspace(math.atan(smax), math.atan(smin), n)), 0.0)


def kl_optimal_to_smin(n: int, levels: Levels) -> np.ndarray:
    """Compute kl_optimal for n + 1 sigmas that end at smin. Source: A1111 and Forge modules/sd_schedulers.py."""
    smin, smax = _range(levels)
    return np.tan(np.linspace(math.atan(smax), math.atan(smin), n + 1))


def linear_quadratic(n: int, levels: Levels, threshold: float = 0.025) -> np.ndarray:
    """Compute smax (1 - f), where f rises linearly to `threshold`, then quadratically to 1.

        f_i = threshold i / m                         i < m = n // 2
        f_i = a i^2 + b i + c                         i >= m, continuous in value and slope, f_n = 1

    Source: Mochi (Genmo 2024); ComfyUI comfy/samplers.py, linear_quadratic_schedule.
    """
    if n == 1:
        return np.array([_range(levels)[1], 0.0])
    m = n // 2
    excess = m - threshold * n
    q = n - m
    a, b = excess / (m * q**2), threshold / m - 2 * excess / q**2
    i = np.arange(n)
    rising = np.where(i < m, threshold * i / m, a * i**2 + b * i + a * m**2)
    return (1 - np.append(rising, 1.0)) * _range(levels)[1]


def bong_tangent(n: int, levels: Levels) -> np.ndarray:
    """Join two arctangent curves, from smax to the middle of the range and from there to smin.

        v(i) = (2 / pi atan(-slope (i - pivot)) + 1) / 2, scaled to the ends of its part; slope 8 / (n + 2)

    For n = 1 the schedule begins in the middle.
    Source: RES4LYF; stable-diffusion.cpp BongTangentScheduler (pivots 0.6, slopes 0.2).
    """
    smin, smax = _range(levels)
    steps = n + 2
    first = steps * 3 // 5
    slope = 0.2 / (steps / 40)
    middle = smin + (smax - smin) / 2
    upper = _arctangent(first, slope, first, smax, middle)
    lower = _arctangent(steps - first, slope, 0, middle, smin)
    return np.append(np.concatenate([upper[:-1], lower])[:n], 0.0)


def _arctangent(steps: int, slope: float, pivot: int, start: float, end: float) -> np.ndarray:
    v = (2 / math.pi * np.arctan(-slope * (np.arange(steps) - pivot)) + 1) / 2
    if abs(v[0] - v[-1]) < 1e-8:
        return np.linspace(start, end, steps)
    return (v - v[-1]) / (v[0] - v[-1]) * (start - end) + end


def custom(text: str) -> np.ndarray:
    """Parse a list of sigmas, "14.6,7,3,0". Raises ValueError for rising or negative ones, or fewer than two.

    Blanks, tabs and brackets are ignored. No 0 is appended, because stable-diffusion.cpp does not change --sigmas
    either. -> [n + 1]
    """
    pieces = text.strip().strip("[]").replace(",", " ").split()
    try:
        sigmas = np.array([float(piece) for piece in pieces])
    except ValueError:
        raise ValueError(f"expected numbers between commas, found {text!r}") from None
    if len(sigmas) < 2 or not np.isfinite(sigmas).all() or sigmas[-1] < 0 or (np.diff(sigmas) >= 0).any():
        raise ValueError(f"expected two or more falling numbers, none below 0, found {text!r}")
    return sigmas
