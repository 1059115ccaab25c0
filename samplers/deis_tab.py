import math

import numpy as np

from refsd.kernels.multistep import multistep
from refsd.samplers.parameterization import Denoiser
from refsd.samplers.step import Callback, StepNoise, intervals, no_noise

# The variance-preserving SDE whose sigma is 0.002 at t = 0.001 and 80 at t = 1: beta(t) = _START + _RISE t.
_LOW, _HIGH = math.log(0.002**2 + 1), math.log(80.0**2 + 1)
_RISE = 2 * (_LOW / 1e-3 - _HIGH) / (1e-3 - 1)
_START = _HIGH - _RISE / 2


def vp_time(sigma):
    """t at which that SDE has a sigma: ln(sigma^2 + 1) = _RISE t^2 / 2 + _START t. Source: Song et al. 2021."""
    return (np.sqrt(_START**2 + 2 * _RISE * np.log(np.square(sigma) + 1)) - _START) / _RISE


def time_polynomial_weights(times: np.ndarray, end: float, points: int = 10000) -> np.ndarray:
    """Weights of past noise predictions in the integral over sigma, by the polynomial in t through them.

        c_j = int_times_0^end (dsigma / dt) prod_{k != j} (t - times_k) / (times_j - times_k) dt

    times: [order], newest first; -> [order]
    The integral is a sum over `points` values from end to end, each a 1 / points of the way wide, as published: its
    error is of the order of 1e-4.
    """
    t = np.linspace(times[0], end, points)
    exponent = _RISE * t**2 / 2 + _START * t
    slope = (_RISE * t + _START) * np.exp(exponent) / (2 * np.sqrt(np.expm1(exponent)))
    basis = [[(t - b) / (a - b) for b in times if b != a] for a in times]
    return np.array([np.sum(slope * np.prod(factors, axis=0)) * (end - times[0]) / points for factors in basis])


def deis_tab(
    model: Denoiser,
    x: np.ndarray,
    sigmas: np.ndarray,
    noise: StepNoise = no_noise,
    callback: Callback | None = None,
    order: int = 3,
) -> np.ndarray:
    """DEIS (tAB): the noise prediction extrapolated in the time of a variance-preserving SDE. One call a step.

    x:      latents at sigmas[0]
    sigmas: [n + 1], falling; the first step, and one to 0, is an Euler step
    noise:  never drawn from
    order:  predictions used, where there are so many yet
    -> latents at sigmas[-1], dtype of x
    Source: Zhang & Chen 2023 (DEIS), section 3.2; zju-pi/diff-sampler; ComfyUI and Forge sample_deis, "tab".
    """
    past: list[np.ndarray] = []
    for i, sigma, sigma_next in intervals(sigmas):
        denoised = model(x, sigma)
        if callback:
            callback(i, sigma, x, denoised)
        if sigma_next == 0:
            return denoised
        weights = [sigma_next - sigma]
        if past:
            times = vp_time(np.asarray(sigmas[i - len(past) : i + 1][::-1], np.float64))
            weights = time_polynomial_weights(times, float(vp_time(sigma_next))).tolist()
        x, eps = multistep(x, denoised, sigma, weights, past)
        past = [eps, *past][: order - 1]
    return x
