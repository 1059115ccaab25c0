import math

import numpy as np

from refsd.samplers.latents import sampler
from refsd.samplers.lms import gauss_legendre
from refsd.samplers.step import intervals, no_callback, no_noise

# The variance-preserving SDE whose sigma is 0.002 at t = 0.001 and 80 at t = 1: beta(t) = _START + _RISE t.
_LOW, _HIGH = math.log(0.002**2 + 1), math.log(80.0**2 + 1)
_RISE = 2 * (_LOW / 1e-3 - _HIGH) / (1e-3 - 1)
_START = _HIGH - _RISE / 2


def vp_time(sigma):
    """Solve ln(sigma^2 + 1) = _RISE t^2 / 2 + _START t for the SDE's time t. Source: Song et al. 2021."""
    return (np.sqrt(_START**2 + 2 * _RISE * np.log(np.square(sigma) + 1)) - _START) / _RISE


def time_polynomial_weights(times: np.ndarray, end: np.ndarray, points: int = 10000) -> np.ndarray:
    """Compute weights of past noise predictions: the integral over sigma of the polynomial in t through them.

        c_j = int_times_0^end (dsigma / dt) prod_{k != j} (t - times_k) / (times_j - times_k) dt

    times: [steps, order], newest first; end: [steps]; -> [steps, order]
    The published code approximates the integral by a sum of `points` values, both ends included, each of width
    1 / points, with an error of the order of 1e-4. Here that sum is computed from the exact integral and the values
    at the ends.
    Source: Gregory's formula (Hildebrand 1974, Introduction to numerical analysis, section 5.9).
    """
    nodes, shares = gauss_legendre(48)
    start, way = times[:, :1], end[:, None] - times[:, :1]
    ends = np.array([0, 1, points - 2, points - 1]) / (points - 1)
    t = start + way * np.concatenate([(nodes + 1) / 2, ends])
    exponent = _RISE * t**2 / 2 + _START * t
    slope = (_RISE * t + _START) * np.exp(exponent) / (2 * np.sqrt(np.expm1(exponent)))
    # sum f = (points - 1) int f + (f_first + f_last) / 2 + (f_first - f_second + f_last - f_before) / 12
    sums = np.concatenate([shares / 2 * (points - 1), np.array([7, -1, -1, 7]) / 12])
    order = range(times.shape[1])
    basis = [
        [(t - times[:, k, None]) / (times[:, j] - times[:, k])[:, None] for k in order if k != j] for j in order
    ]
    return np.stack([(slope * np.prod(factors, axis=0)) @ sums for factors in basis], axis=1) * way / points


@sampler
def deis_tab(model, x, sigmas, noise=no_noise, callback=no_callback, order=3):
    """Sample with DEIS (tAB): extrapolate the noise prediction in the time of a VP SDE. One call a step.

    sigmas: [n + 1], falling; the first step, and a step to 0, are Euler steps
    noise:  not used
    order:  predictions used, once there are that many
    Source: Zhang & Chen 2023 (DEIS), section 3.2; zju-pi/diff-sampler; ComfyUI and Forge sample_deis, "tab".
    """
    weights = _weights(np.asarray(sigmas[sigmas > 0], np.float64), order)
    epses: list[np.ndarray] = []
    for i, sigma, sigma_next in intervals(sigmas):
        denoised = model(x, sigma)
        callback(i, sigma, x, denoised)
        if sigma_next == 0:
            return denoised
        eps = (x - denoised) / sigma
        epses = [eps, *epses][:order]
        x = sum((c * eps for c, eps in zip(weights[i], epses, strict=False)), start=x)
    return x


def _weights(sigmas: np.ndarray, order: int) -> list[list[float]]:
    """Compute every step's weights; the first step is Euler's. Steps with equally many predictions share a call."""
    times, weights = vp_time(sigmas), np.diff(sigmas[:2])[:, None].tolist()
    for used in range(min(order, 2), order + 1):
        ends = np.arange(len(weights) + 1, len(sigmas) if used == order else min(used + 1, len(sigmas)))
        if used == 1:
            weights += np.diff(sigmas)[1:, None].tolist()
        elif len(ends):
            weights += time_polynomial_weights(times[ends[:, None] - 1 - np.arange(used)], times[ends]).tolist()
    return weights
