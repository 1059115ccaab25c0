"""UniPC: a predictor over past values of denoised, and a corrector that also knows the new one. One call a step."""

import numpy as np

from refsd.kernels.combine import combine
from refsd.kernels.combine_twice import combine_twice
from refsd.kernels.uni_pc_weights import uni_pc_weights
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
    i, sizes = np.arange(len(times) - 1), scale(np.diff(times))
    used = np.minimum(np.minimum(order, i + 1), steps - i)
    predictor, corrector = (uni_pc_weights(times, used, sizes, ahead, order) for ahead in (0, 1))
    # The predictor's m_0 is the corrector's new value, its m_1 the corrector's m_0.
    both = np.zeros((len(used), 2 * order + 5))
    both[1:, : order + 2], both[:, order + 2] = corrector[:-1], predictor[:, 0]
    both[:, order + 4 : -2], both[:, -1] = predictor[:, 2:-1], predictor[:, 1]
    rows = list(both)
    past: list[np.ndarray] = []
    start = x
    for i, sigma, sigma_next in intervals(sigmas):
        denoised = model(x, sigma)
        arrays = [start, *past, denoised]
        # Where there are not so many values yet, their weights are 0.
        past = [denoised, *past[: order - 1]] if past else [denoised] * order
        if sigma_next == 0:
            if callback:
                callback(i, sigma, combine(*_terms(corrector[i - 1].tolist(), arrays)) if i > 0 else x, denoised)
            return denoised
        if i == 0:
            start, x = x, combine(predictor[0, 0], x, predictor[0, 1], denoised)
        else:
            x = start
            start, x = combine_twice(rows[i], arrays)
        if callback:
            callback(i, sigma, start, denoised)
    return x


def _terms(weights, arrays):
    return [part for term in zip(weights, arrays, strict=True) for part in term]
