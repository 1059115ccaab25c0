"""UniPC: a predictor over past values of denoised, and a corrector that also knows the new one. One call a step."""

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
    return _uni_pc(model, x, sigmas, callback, order, lambda h: np.expm1(-h))


def _uni_pc(model, x, sigmas, callback, order, scale):
    """scale: h -> B(h) with the sign that it has for a prediction of denoised"""
    steps = len(sigmas) - 1
    times = -np.log(np.asarray(sigmas[sigmas > 0], np.float64))
    used = [min(order, steps - i, i + 1) for i in range(steps)]
    predictors, correctors = (_weights(times, used, scale, corrects) for corrects in (False, True))
    past: list[np.ndarray] = []
    start = x
    for i, sigma, sigma_next in intervals(sigmas):
        denoised = model(x, sigma)
        correct = correctors[i - 1] if i > 0 else [1.0]
        arrays = [start, *past[: used[i - 1]], denoised] if i > 0 else [start]
        past = [denoised, *past[: order - 1]]
        if sigma_next == 0:
            if callback:
                callback(i, sigma, combine(*_terms(correct, arrays)), denoised)
            return denoised
        keep, newest, *predict = predictors[i]
        if i == 0:
            start, x = x, combine(keep, x, newest, denoised)
        else:
            # The predictor's m_0 is the corrector's new value, its m_1 the corrector's m_0.
            late = [0.0, *predict, *[0.0] * (len(arrays) - 2 - len(predict)), newest]
            start, x = combine_twice(correct, keep, late, arrays)
        if callback:
            callback(i, sigma, start, denoised)
    return x


def _terms(weights, arrays):
    return [part for term in zip(weights, arrays, strict=True) for part in term]


def _weights(times: np.ndarray, used: list[int], scale, corrects: bool) -> list[list[float]]:
    """Of each step: of x, m_0, m_1, ... and, where it corrects, of the new value. Steps of one order go together.

    times: [n + 1]; used: the orders of at least n steps
    """
    orders = np.array(used[: len(times) - 1], int)
    rows: list[list[float]] = [[]] * len(orders)
    for order in set(orders.tolist()):
        at = np.flatnonzero(orders == order)
        h = times[at + 1] - times[at]
        r = [(times[at - 1 - k] - times[at]) / h for k in range(order - 1)]
        size, phi, factorial = scale(h), np.expm1(-h) / -h - 1, 1
        b = []
        for k in range(order):
            b.append(phi * factorial / size)
            factorial *= k + 2
            phi = phi / -h - 1 / factorial
        half = [np.full_like(h, 0.5)]
        if corrects:
            r.append(np.ones_like(h))
            rho = _solve(r, b) if order > 1 else half
        else:
            rho = _solve(r, b[:-1]) if order != 2 else half
        # e^-h x + (1 - e^-h) m_0 - B sum_i rho_i (m_i - m_0) / r_i, the new value's r being 1
        differences = [-size * weight / node for weight, node in zip(rho, r, strict=True)]
        table = np.stack([np.exp(-h), -np.expm1(-h) - sum(differences), *differences], axis=1)
        for i, row in zip(at.tolist(), table.tolist(), strict=True):
            rows[i] = row
    return rows


def _solve(nodes: list[np.ndarray], b: list[np.ndarray]) -> list[np.ndarray]:
    """rho of sum_i nodes_i^k rho_i = b_k, of many steps at once. Source: Bjorck & Pereyra 1970."""
    rho, n = list(b), len(nodes)
    for k in range(n - 1):
        for i in range(n - 1, k, -1):
            rho[i] = rho[i] - nodes[k] * rho[i - 1]
    for k in range(n - 2, -1, -1):
        for i in range(k + 1, n):
            rho[i] = rho[i] / (nodes[i] - nodes[i - k - 1])
        for i in range(k, n - 1):
            rho[i] = rho[i] - rho[i + 1]
    return rho
