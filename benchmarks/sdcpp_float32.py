"""Three samplers of stable-diffusion.cpp with its float32 scalars, in its order of operations.

If a step depends on a difference of nearly equal numbers, float32's rounding error reaches the fourth digit. That
is a deviation of the program, not mere rounding in the step. `plain` adds the terms in the program's order; `sizes`
does so with absolute coefficients, which bounds the rounding error of the sum.
"""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from refsd.numerics.deviations import Deviation
from refsd.samplers.levels import Levels
from refsd.samplers.parameterization import Denoiser
from refsd.samplers.schedules.tables import AYS_SD1_LEVELS
from refsd.samplers.step import Callback, StepNoise

_F = np.float32
_ONE = _F(1)
# (coefficient, array, coefficient, array, ...) -> the sum of the products
Sum = Callable[..., np.ndarray]


def plain(*terms: Any) -> np.ndarray:
    y = float(terms[0]) * terms[1]
    for c, a in zip(terms[2::2], terms[3::2], strict=True):
        y = y + float(c) * a
    return y


def sizes(*terms: Any) -> np.ndarray:
    return plain(*(part if k % 2 else abs(float(part)) for k, part in enumerate(terms)))


def ancestral_step_float32(sigma: np.float32, sigma_next: np.float32, eta: np.float32):
    """Compute sigma_down, sigma_up. Source: stable-diffusion.cpp src/denoiser.hpp, get_ancestral_step."""
    if eta <= 0:
        return sigma_next, _F(0)
    square, square_next = sigma * sigma, sigma_next * sigma_next
    term = square_next * (square - square_next) / square
    up = min(sigma_next, eta * np.sqrt(max(term, _F(0))))
    left = square_next - up * up
    return np.sqrt(left) if left > 0 else _F(0), up


def dpmpp_2s_ancestral_float32(
    model: Denoiser,
    x: np.ndarray,
    sigmas: np.ndarray,
    noise: StepNoise,
    callback: Callback | None = None,
    eta: float = 1.0,
    total: Sum = plain,
) -> np.ndarray:
    """Sample as samplers/dpmpp_2s_ancestral.py does, with float32 times and sigma_down.

    total: adds up terms (`plain` or `sizes`); the other arguments are dpmpp_2s_ancestral's.
    Source: src/denoiser.hpp, sample_dpmpp_2s_ancestral.
    """
    for i, (sigma, sigma_next) in enumerate(pairwise(sigmas.astype(_F))):
        denoised = model(x, float(sigma))
        if callback:
            callback(i, float(sigma), x, denoised)
        down, up = ancestral_step_float32(sigma, sigma_next, _F(eta))
        fresh = (up, noise(float(sigma), float(sigma_next))) if sigma_next > 0 else ()
        if down == 0:
            x = total(1.0, denoised, *fresh)
            continue
        t, t_next = _F(-math.log(sigma)), _F(-math.log(down))
        h = t_next - t
        middle = _F(math.exp(-(t + _F(0.5) * h)))
        x_2 = total(middle / _F(math.exp(-t)), x, -(math.exp(-h * _F(0.5)) - 1), denoised)
        step = _F(math.exp(-t_next)) / _F(math.exp(-t)), -(math.exp(-h) - 1)
        x = total(step[0], x, step[1], model(x_2, float(middle)), *fresh)
    return x


def ddim_trailing_float32(
    model: Denoiser,
    x: np.ndarray,
    sigmas: np.ndarray,
    noise: StepNoise,
    callback: Callback | None = None,
    eta: float = 0.0,
    total: Sum = plain,
) -> np.ndarray:
    """Sample with Euler ancestral in variance-preserving coordinates, where 1 - 1 / (sigma^2 + 1) loses digits.

    The arguments are those of dpmpp_2s_ancestral_float32. Source: src/denoiser.hpp, sample_ddim_trailing.
    """
    for i, (sigma, sigma_next) in enumerate(pairwise(sigmas.astype(_F))):
        denoised = model(x, float(sigma))
        if callback:
            callback(i, float(sigma), x, denoised)
        alpha, alpha_next = (_ONE / (s * s + _ONE) for s in (sigma, sigma_next))
        beta, beta_next = _ONE - alpha, _ONE - alpha_next
        std = _F(eta) * np.sqrt((beta_next / beta) * (_ONE - alpha / alpha_next))
        slope = np.sqrt((_ONE - alpha_next - std * std) / alpha_next)
        fresh = (std / np.sqrt(alpha_next), noise(float(sigma), float(sigma_next))) if eta > 0 else ()
        x = total(*_original(sigma, alpha, beta, x, denoised), *_slope(slope, sigma, x, denoised), *fresh)
    return x


def tcd_float32(
    model: Denoiser,
    x: np.ndarray,
    sigmas: np.ndarray,
    noise: StepNoise,
    callback: Callback | None = None,
    eta: float = 0.0,
    total: Sum = plain,
) -> np.ndarray:
    """Sample as samplers/distilled.py, tcd_sdcpp, does, in variance-preserving coordinates.

    The arguments are those of dpmpp_2s_ancestral_float32. Source: src/denoiser.hpp, sample_tcd.
    """
    kept = _alphas_cumprod()
    levels = np.sqrt((1 - kept) / kept)
    for i, (sigma, sigma_next) in enumerate(pairwise(sigmas.astype(_F))):
        denoised = model(x, float(sigma))
        if callback:
            callback(i, float(sigma), x, denoised)
        nearest = int(np.abs(levels - float(sigma_next)).argmin())
        alpha, alpha_next = (_ONE / (s * s + _ONE) for s in (sigma, sigma_next))
        alpha_s = _F(kept[int((_ONE - _F(eta)) * _F(nearest))])
        first, second = np.sqrt(alpha_s / alpha_next), np.sqrt((_ONE - alpha_s) / alpha_next)
        last, fresh = 1.0, ()
        if eta > 0 and sigma_next > 0:
            last = float(np.sqrt(alpha_next / alpha_s))
            up = np.sqrt(_ONE / alpha_next - _ONE / alpha_s)
            fresh = (up, noise(float(sigma), float(sigma_next)))
        terms = [*_original(sigma, alpha, _ONE - alpha, x, denoised)]
        terms[::2] = [float(first) * last * c for c in terms[::2]]
        x = total(*terms, *_slope(float(second) * last, sigma, x, denoised), *fresh)
    return x


def _alphas_cumprod() -> np.ndarray:
    """Multiply float32 factors in double. -> [1000] float64. Source: src/denoiser.hpp, sample_tcd."""
    start, end = np.sqrt(_F(0.00085)), np.sqrt(_F(0.0120))
    root = start + (end - start) * (np.arange(1000, dtype=_F) / _F(999))
    return np.cumprod(_ONE - root.astype(np.float64) ** 2)


def _original(sigma, alpha, beta, x, denoised) -> tuple:
    """List the terms of (x / sqrt(sigma^2 + 1) - sqrt(beta) (x - denoised) / sigma) / sqrt(alpha)."""
    back, root = float(_ONE / np.sqrt(alpha)), np.sqrt(beta)
    scaled = back / float(np.sqrt(sigma * sigma + _ONE))
    return (scaled, x, *_slope(-back * float(root), sigma, x, denoised))


def _slope(weight, sigma, x, denoised) -> tuple:
    """List the terms of weight (x - denoised) / sigma."""
    c = float(weight) * float(_ONE / sigma)
    return c, x, -c, denoised


def float32_sigmas(schedule: str, n: int, levels: Levels) -> np.ndarray | None:
    """Compute a schedule whose float32 sums or tangents change more than sigma's last bits; None for others.

    discrete interpolates ln sigma between levels; ays adds up its positions one by one; in kl_optimal, tan turns an
    error of one bit into 15 at sigma 14.6.
    -> [n + 1], float32 in float64. Source: src/denoiser.hpp, DiscreteScheduler, AYSScheduler, KLOptimalScheduler.
    """
    logs = np.log(levels.sigmas).astype(_F)
    if schedule == "discrete" and n > 1:
        t = _F(len(logs) - 1) - _F(len(logs) - 1) / _F(n - 1) * np.arange(n, dtype=_F)
        low, high = np.floor(t).astype(int), np.ceil(t).astype(int)
        share = t - low.astype(_F)
        sigmas = np.exp(((_ONE - share) * logs[low] + share * logs[high]).astype(np.float64))
    elif schedule == "ays" and n != len(AYS_SD1_LEVELS) - 1:
        known = np.log(np.array(AYS_SD1_LEVELS)[::-1]).astype(_F)
        sigmas = np.exp(np.interp(_places(n + 1), _places(len(known)), known))[:0:-1]
    elif schedule == "kl_optimal" and n > 1:
        share = np.arange(n, dtype=_F) / _F(n - 1)
        low, high = np.arctan(levels.sigmas[[0, -1]]).astype(_F)
        sigmas = np.tan((share * low + (_ONE - share) * high).astype(np.float64))
    else:
        return None
    return np.append(sigmas.astype(_F), _F(0)).astype(np.float64)


def _places(count: int) -> np.ndarray:
    """Return `count` positions from 0 to 1, each the previous one plus a float32 step."""
    return np.append(_F(0), np.cumsum(np.full(count - 1, _ONE / _F(count - 1)), dtype=_F)).astype(np.float64)


# The scalars differ only in their last bits. These samplers run only to show that this explains an engine's result.
DEVIATIONS: dict[str, tuple[Deviation, Callable[..., np.ndarray]]] = {
    "dpm++2s_a": (
        Deviation(
            "sdcpp/sigma-down-float32",
            "dpm++2s_a",
            {"scalars": "float32"},
            "sqrt(sigma_next^2 - sigma_up^2) and the step's times are float32: of a long step digits are lost",
            "stable-diffusion.cpp src/denoiser.hpp, get_ancestral_step, sample_dpmpp_2s_ancestral",
        ),
        dpmpp_2s_ancestral_float32,
    ),
    "ddim_trailing": (
        Deviation(
            "sdcpp/ddim-alpha-float32",
            "ddim_trailing",
            {"scalars": "float32"},
            "1 - 1 / (sigma^2 + 1) is float32, four digits of it at sigma 0.03",
            "stable-diffusion.cpp src/denoiser.hpp, sample_ddim_trailing",
        ),
        ddim_trailing_float32,
    ),
    "tcd": (
        Deviation(
            "sdcpp/tcd-alpha-float32",
            "tcd",
            {"scalars": "float32"},
            "1 - 1 / (sigma^2 + 1), and 1 / alpha_next - 1 / alpha_s, are float32",
            "stable-diffusion.cpp src/denoiser.hpp, sample_tcd",
        ),
        tcd_float32,
    ),
}
