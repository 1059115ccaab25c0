"""UniPC: a predictor over past values of denoised, and a corrector that also knows the new one. One call a step."""

import math

import numpy as np

from refsd.kernels.combine import combine
from refsd.kernels.combine_twice import combine_twice
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
    times = [-math.log(s) if s > 0 else math.inf for s in sigmas.tolist()]
    past: list[np.ndarray] = []
    start, used = x, 0
    for i, sigma, sigma_next in intervals(sigmas):
        denoised = model(x, sigma)
        correct = _weights(times[: i + 1], used, scale, True) if i > 0 else [1.0]
        arrays = [start, *past[:used], denoised] if i > 0 else [start]
        used = min(order, steps - i, len(past) + 1)
        past = [denoised, *past[: order - 1]]
        if sigma_next == 0:
            if callback:
                callback(i, sigma, combine(*_terms(correct, arrays)), denoised)
            return denoised
        keep, *predict = _weights(times[: i + 2], used, scale, False)
        if i == 0:
            start, x = x, combine(keep, x, predict[0], denoised)
        else:
            # The predictor's m_0 is the corrector's new value, its m_1 the corrector's m_0.
            late = [0.0, *predict[1:], *[0.0] * (len(arrays) - 1 - len(predict)), predict[0]]
            terms = (part for term in zip(correct, late, arrays, strict=True) for part in term)
            start, x = combine_twice(keep, *terms)
        if callback:
            callback(i, sigma, start, denoised)
    return x


def _terms(weights, arrays):
    return [part for term in zip(weights, arrays, strict=True) for part in term]


def _weights(times: list[float], order: int, scale, corrects: bool) -> list[float]:
    """Of the step from times[-2] to times[-1]: of x, m_0, m_1, ... and, where it corrects, of the new value."""
    h = times[-1] - times[-2]
    r = [(times[-3 - k] - times[-2]) / h for k in range(order - 1)]
    size, phi, factorial = scale(h), math.expm1(-h) / -h - 1, 1
    b = []
    for k in range(order):
        b.append(phi * factorial / size)
        factorial *= k + 2
        phi = phi / -h - 1 / factorial
    if corrects:
        r.append(1.0)
        rho = _solve(r, b) if order > 1 else [0.5]
    else:
        rho = _solve(r, b[:-1]) if order != 2 else [0.5]
    # e^-h x + (1 - e^-h) m_0 - B sum_i rho_i (m_i - m_0) / r_i, the new value's r being 1
    differences = [-size * weight / node for weight, node in zip(rho, r, strict=True)]
    return [math.exp(-h), -math.expm1(-h) - sum(differences), *differences]


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
