"""UniPC: a predictor over past values of denoised, and a corrector that also knows the new one. One call a step."""

import math

import numpy as np

from refsd.kernels.combine import combine
from refsd.samplers.parameterization import Denoiser
from refsd.samplers.step import Callback, StepNoise, intervals, no_noise


def uni_pc(
    model: Denoiser,
    x: np.ndarray,
    sigmas: np.ndarray,
    noise: StepNoise = no_noise,
    callback: Callback | None = None,
    order: int = 3,
) -> np.ndarray:
    """B_1(h) = h: see uni_pc_bh2 for the arguments. Better where steps are many and guidance is weak."""
    return _uni_pc(model, x, sigmas, callback, order, lambda h: -h)


def uni_pc_bh2(
    model: Denoiser,
    x: np.ndarray,
    sigmas: np.ndarray,
    noise: StepNoise = no_noise,
    callback: Callback | None = None,
    order: int = 3,
) -> np.ndarray:
    """The unified predictor-corrector with B_2(h) = e^h - 1, predicting denoised.

        predict: x' = sigma_next / sigma x + (1 - e^-h) m_0 - B sum_i rho_i D_i
        correct: the same from the last x, with D of the new value too

    m are values of denoised, D_i = (m_i - m_0) / r_i, r_i = (t_i - t_0) / h, t = -ln sigma; rho solves a
    Vandermonde system in r. The corrected x is what the next step starts from; its denoised is the predicted x's.

    x:      latents at sigmas[0]
    sigmas: [n + 1], falling; the first steps, and the last ones, are of lower order; a step to 0 takes denoised
    noise:  never drawn from
    -> latents at sigmas[-1], dtype of x
    Source: Zhao et al. 2023 (UniPC), algorithms 5 to 8; diffusers UniPCMultistepScheduler.
    """
    return _uni_pc(model, x, sigmas, callback, order, lambda h: math.expm1(-h))


def _uni_pc(model, x, sigmas, callback, order, scale):
    """scale: h -> B(h) with the sign that it has for a prediction of denoised"""
    steps = len(sigmas) - 1
    times = [-math.log(s) if s > 0 else math.inf for s in map(float, sigmas)]
    past: list[np.ndarray] = []
    start, used = x, 0
    for i, sigma, sigma_next in intervals(sigmas):
        denoised = model(x, sigma)
        if i > 0:
            x = _update(start, past, times[: i + 1], used, scale, denoised)
        if callback:
            callback(i, sigma, x, denoised)
        past = [denoised, *past[: order - 1]]
        if sigma_next == 0:
            return denoised
        used = min(order, steps - i, len(past))
        start = x
        x = _update(start, past, times[: i + 2], used, scale)
    return x


def _update(x, past, times, order, scale, new=None):
    """From times[-2] to times[-1]: predicted from `past`, newest first; corrected where `new` is given."""
    h = times[-1] - times[-2]
    r = [(times[-3 - k] - times[-2]) / h for k in range(order - 1)]
    b, phi, factorial = [], math.expm1(-h) / -h - 1, 1
    for k in range(order):
        b.append(phi * factorial / scale(h))
        factorial *= k + 2
        phi = phi / -h - 1 / factorial
    if new is not None:
        rho = _solve([*r, 1.0], b) if order > 1 else [0.5]
    else:
        rho = _solve(r, b[:-1]) if order != 2 else [0.5]
    # e^-h x + (1 - e^-h) m_0 - B (sum_i rho_i (m_i - m_0) / r_i + rho (new - m_0))
    weights = [-scale(h) * weight / node for weight, node in zip(rho, [*r, 1.0], strict=False)]
    y = [math.exp(-h), x, -math.expm1(-h) - sum(weights), past[0]]
    for weight, m in zip(weights, past[1:order] if new is None else [*past[1:order], new], strict=True):
        y += weight, m
    return combine(*y)


def _solve(nodes: list[float], b: list[float]) -> list[float]:
    """rho of sum_i nodes_i^k rho_i = b_k. Source: Bjorck & Pereyra 1970."""
    rho, n = list(b), len(nodes)
    for k in range(n - 1):
        for i in range(n - 1, k, -1):
            rho[i] -= nodes[k] * rho[i - 1]
    for k in range(n - 2, -1, -1):
        for i in range(k + 1, n):
            rho[i] /= nodes[i] - nodes[i - k - 1]
        for i in range(k, n - 1):
            rho[i] -= rho[i + 1]
    return rho
