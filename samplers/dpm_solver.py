"""DPM-Solver with steps of orders 1 to 3 in t = -ln sigma: a fixed number of calls, or steps as errors allow."""

import math

import numpy as np

from refsd.kernels.combine import combine
from refsd.kernels.step_error import step_error
from refsd.samplers.ancestral import NONE, ancestral_step
from refsd.samplers.parameterization import Denoiser
from refsd.samplers.step import Callback, StepNoise, StepsError, no_noise


def step_1(x: np.ndarray, denoised: np.ndarray, sigma: float, sigma_next: float) -> tuple:
    """x - sigma_next (e^h - 1) eps, sigma_next e^h = sigma, eps = (x - denoised) / sigma: Euler's step.

    -> the step's terms, as combine takes them
    Source: Lu et al. 2022 (DPM-Solver), eq. 3.7.
    """
    ratio = sigma_next / sigma
    return ratio, x, 1 - ratio, denoised


def step_2(x, denoised, denoised_1, sigma: float, sigma_1: float, sigma_next: float, r1: float = 0.5) -> tuple:
    """step_1 - (sigma - sigma_next) (eps_1 - eps) / 2 r1, denoised_1 after step_1 to sigma_1 = sigma e^(-r1 h).

    As in Heun's method (eps_1 - eps) sigma_1 = denoised - denoised_1. Source: ibid., algorithm 4.
    """
    ratio, late = sigma_next / sigma, (sigma - sigma_next) / (2 * r1 * sigma_1)
    return ratio, x, 1 - ratio - late, denoised, late, denoised_1


def step_3(model: Denoiser, x, denoised, denoised_1, sigma: float, sigma_1: float, sigma_next: float) -> tuple:
    """One more call, two thirds of the way, where denoised_1 is a third.

        u_2 = step_1 - 2 sigma_2 phi(2 h / 3) (eps_1 - eps),  phi(h) = (e^h - 1) / h - 1
        step_1 - 1.5 sigma_next phi(h) (eps_2 - eps)

    Source: ibid., algorithm 5.
    """
    h = math.log(sigma / sigma_next)
    sigma_2 = sigma * math.exp(-2 * h / 3)
    ratio, late = sigma_2 / sigma, 2 * sigma_2 * (math.expm1(2 * h / 3) / (2 * h / 3) - 1) / sigma_1
    denoised_2 = model(combine(ratio, x, 1 - ratio - late, denoised, late, denoised_1), sigma_2)
    # (eps_2 - eps) sigma_2 = denoised - denoised_2 + late (denoised_1 - denoised)
    ratio, last = sigma_next / sigma, 1.5 * sigma_next * (math.expm1(h) / h - 1) / sigma_2
    return ratio, x, 1 - ratio - last + last * late, denoised, -last * late, denoised_1, last, denoised_2


def dpm_fast(
    model: Denoiser,
    x: np.ndarray,
    sigmas: np.ndarray,
    noise: StepNoise = no_noise,
    callback: Callback | None = None,
    eta: float = 0.0,
    s_noise: float = 1.0,
) -> np.ndarray:
    """DPM-Solver-fast: n calls in all, spent on steps of order 3, evenly spaced in ln sigma, and a shorter rest.

    sigmas: [n + 1]; only n, the first and the last that is not 0 count
    noise:  drawn from once a step where eta is not 0
    -> latents at the last sigma that is not 0, dtype of x
    Source: Lu et al. 2022 (DPM-Solver), section 3.4; k-diffusion sample_dpm_fast.
    """
    n, start, end = _range(sigmas)
    m = n // 3 + 1
    orders = [3] * (m - 2) + [2, 1] if n % 3 == 0 else [3] * (m - 1) + [n % 3]
    levels = np.exp(np.linspace(math.log(start), math.log(end), m + 1)).tolist()
    for i, order in enumerate(orders):
        sigma, sigma_next = levels[i], levels[i + 1]
        sigma_down, sigma_up = _down(sigma, sigma_next, end, eta)
        denoised = model(x, sigma)
        if callback:
            callback(i, sigma, x, denoised)
        sigma_1 = sigma * (sigma_down / sigma) ** (1 / order)
        denoised_1 = model(combine(*step_1(x, denoised, sigma, sigma_1)), sigma_1) if order > 1 else denoised
        if order == 1:
            moved = step_1(x, denoised, sigma, sigma_down)
        elif order == 2:
            moved = step_2(x, denoised, denoised_1, sigma, sigma_1, sigma_down)
        else:
            moved = step_3(model, x, denoised, denoised_1, sigma, sigma_1, sigma_down)
        up, n = (s_noise * sigma_up, noise(sigma, sigma_next)) if eta else NONE
        x = combine(*moved, up, n)
    return x


def dpm_adaptive(
    model: Denoiser,
    x: np.ndarray,
    sigmas: np.ndarray,
    noise: StepNoise = no_noise,
    callback: Callback | None = None,
    eta: float = 0.0,
    s_noise: float = 1.0,
) -> np.ndarray:
    """DPM-Solver-23: steps of order 3, as long as their difference from order 2 allows.

        error = rms((x_low - x_high) / max(atol, rtol max(|x_low|, |x_previous|))),  atol 0.0078, rtol 0.05
        h <- h (1 + atan(error^(-1/p) - 1)),  p = 3, with eta 1.5; the step is kept where that factor is >= 0.81

    sigmas: only the first and the last that is not 0 count
    noise:  drawn from at each step that is kept, where eta is not 0
    -> latents at the last sigma that is not 0, dtype of x
    Source: Lu et al. 2022 (DPM-Solver), appendix C.3; k-diffusion sample_dpm_adaptive with its default controller.
    """
    _, start, end = _range(sigmas)
    atol, rtol, power = 0.0078, 0.05, 1 / (1.5 if eta else 3)
    t, t_end, h = -math.log(start), -math.log(end), 0.05
    previous, tried = x, 0
    while t < t_end - 1e-5:
        t_next = min(t_end, t + h)
        sigma, sigma_next = math.exp(-t), math.exp(-t_next)
        sigma_down, sigma_up = _down(sigma, sigma_next, end, eta)
        denoised = model(x, sigma)
        if callback:
            callback(tried, sigma, x, denoised)
        sigma_1 = sigma * (sigma_down / sigma) ** (1 / 3)
        denoised_1 = model(combine(*step_1(x, denoised, sigma, sigma_1)), sigma_1)
        low = combine(*step_2(x, denoised, denoised_1, sigma, sigma_1, sigma_down, 1 / 3))
        high = combine(*step_3(model, x, denoised, denoised_1, sigma, sigma_1, sigma_down))
        error = step_error(low, high, previous, atol, rtol)
        factor = 1 + math.atan((1 / (error + 1e-8)) ** power - 1)
        if factor >= 0.81:
            previous, x, t = low, high, t_next
            if eta:
                x = combine(1.0, x, s_noise * sigma_up, noise(sigma, sigma_next))
        h, tried = h * factor, tried + 1
    return x


def _range(sigmas: np.ndarray) -> tuple[int, float, float]:
    """Steps, the first sigma, and the last that is not 0. Raises StepsError where that is no range."""
    positive = sigmas[sigmas > 0]
    if len(positive) < 2:
        raise StepsError("DPM-Solver steps in ln sigma: it needs two sigmas above 0, so two steps")
    return len(sigmas) - 1, float(positive[0]), float(positive[-1])


def _down(sigma: float, sigma_next: float, end: float, eta: float) -> tuple[float, float]:
    """ancestral_step, not below the end of the range."""
    if not eta:
        return sigma_next, 0.0
    down = max(end, ancestral_step(sigma, sigma_next, eta)[0])
    return down, math.sqrt(sigma_next**2 - down**2)
