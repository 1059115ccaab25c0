"""UniPC: a predictor over past values of denoised, and a corrector that also knows the new one. One call a step."""

import math

import numpy as np

from refsd.samplers.parameterization import Denoiser
from refsd.samplers.step import Callback, StepNoise, no_noise


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
    for i in range(steps):
        sigma, sigma_next = float(sigmas[i]), float(sigmas[i + 1])
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
    m_0, h = past[0], times[-1] - times[-2]
    r = [(times[-3 - k] - times[-2]) / h for k in range(order - 1)]
    differences = [(past[k + 1] - m_0) / r[k] for k in range(order - 1)]
    nodes, b = np.array([*r, 1.0]), np.empty(order)
    phi, factorial = math.expm1(-h) / -h - 1, 1
    for k in range(order):
        b[k] = phi * factorial / scale(h)
        factorial *= k + 2
        phi = phi / -h - 1 / factorial
    system = np.vander(nodes, order, increasing=True).T
    if new is not None:
        rho = np.linalg.solve(system, b) if order > 1 else np.array([0.5])
        differences.append(new - m_0)
    elif order == 2:
        rho = np.array([0.5])
    else:
        rho = np.linalg.solve(system[:-1, :-1], b[:-1])
    y = math.exp(-h) * x - math.expm1(-h) * m_0
    for weight, difference in zip(rho, differences, strict=True):
        y = y - scale(h) * float(weight) * difference
    return y
