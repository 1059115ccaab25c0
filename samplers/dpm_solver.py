"""DPM-Solver with steps of orders 1 to 3 in t = -ln sigma, with a fixed number of calls or adaptive steps."""

import math

import numpy as np

from refsd.kernels.step_error import step_error
from refsd.samplers.ancestral import ancestral_step
from refsd.samplers.latents import array_of, sampler
from refsd.samplers.parameterization import Denoiser
from refsd.samplers.step import StepsError, no_callback, no_noise


def step_1(x: np.ndarray, eps: np.ndarray, sigma: float, sigma_next: float) -> np.ndarray:
    """Take an Euler step: x - sigma_next (e^h - 1) eps,  h = ln(sigma / sigma_next).

    eps: (x - denoised) / sigma
    Source: Lu et al. 2022 (DPM-Solver), eq. 3.7.
    """
    return x - (sigma - sigma_next) * eps


def eps_after(model: Denoiser, x: np.ndarray, eps: np.ndarray, sigma: float, sigma_1: float) -> np.ndarray:
    """Compute eps at sigma_1, at the latents to which step_1 leads."""
    u1 = step_1(x, eps, sigma, sigma_1)
    return (u1 - model(u1, sigma_1)) / sigma_1


def step_2(
    x: np.ndarray, eps: np.ndarray, eps_r1: np.ndarray, sigma: float, sigma_next: float, r1: float = 0.5
) -> np.ndarray:
    """Take a step of order 2: x - sigma_next (e^h - 1) (eps + (eps_r1 - eps) / 2 r1).

    eps_r1: eps at sigma e^(-r1 h)
    Source: ibid., algorithm 4.
    """
    return x - (sigma - sigma_next) * (eps + (eps_r1 - eps) / (2 * r1))


def step_3(
    model: Denoiser, x: np.ndarray, eps: np.ndarray, eps_r1: np.ndarray, sigma: float, sigma_next: float
) -> np.ndarray:
    """Take a step of order 3, with one more model call at two thirds of the step.

        u_2 = x - sigma_2 (e^(2h/3) - 1) eps - 2 sigma_2 phi(2h/3) (eps_r1 - eps),  phi(h) = (e^h - 1) / h - 1
        x - sigma_next (e^h - 1) eps - 1.5 sigma_next phi(h) (eps_r2 - eps)

    eps_r1: eps at sigma e^(-h/3)
    Source: ibid., algorithm 5.
    """
    h = math.log(sigma / sigma_next)
    sigma_2 = sigma * math.exp(-2 * h / 3)
    u2 = step_1(x, eps, sigma, sigma_2) - 2 * sigma_2 * _phi(2 * h / 3) * (eps_r1 - eps)
    eps_r2 = (u2 - model(u2, sigma_2)) / sigma_2
    return step_1(x, eps, sigma, sigma_next) - 1.5 * sigma_next * _phi(h) * (eps_r2 - eps)


def _phi(h: float) -> float:
    return math.expm1(h) / h - 1


@sampler
def dpm_fast(model, x, sigmas, noise=no_noise, callback=no_callback, eta=0.0, s_noise=1.0):
    """Sample with DPM-Solver-fast: n calls, spent on steps of order 3 even in ln sigma, lower orders at the end.

    sigmas: [n + 1]; only n, the first sigma and the last one above 0 are used
    noise:  called once a step if eta is not 0
    -> latents at the last sigma above 0, dtype of x
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
        callback(i, sigma, x, denoised)
        eps = (x - denoised) / sigma
        if order == 1:
            x = step_1(x, eps, sigma, sigma_down)
        else:
            eps_r1 = eps_after(model, x, eps, sigma, sigma * (sigma_down / sigma) ** (1 / order))
            if order == 2:
                x = step_2(x, eps, eps_r1, sigma, sigma_down)
            else:
                x = step_3(model, x, eps, eps_r1, sigma, sigma_down)
        if eta:
            x = x + noise(sigma, sigma_next) * (s_noise * sigma_up)
    return x


@sampler
def dpm_adaptive(model, x, sigmas, noise=no_noise, callback=no_callback, eta=0.0, s_noise=1.0):
    """Sample with DPM-Solver-23: steps of order 3, whose length follows from their difference to order 2.

        error = rms((x_low - x_high) / max(atol, rtol max(|x_low|, |x_previous|))),  atol 0.0078, rtol 0.05
        h <- h (1 + atan(error^(-1/p) - 1)),  p = 3, with eta 1.5; the step is accepted if that factor is >= 0.81

    sigmas: only the first sigma and the last one above 0 are used
    noise:  called once in each accepted step if eta is not 0
    -> latents at the last sigma above 0, dtype of x
    Source: Lu et al. 2022 (DPM-Solver), appendix C.3; k-diffusion sample_dpm_adaptive with its default controller.
    """
    _, start, end = _range(sigmas)
    atol, rtol, power = 0.0078, 0.05, 1 / (1.5 if eta else 3)
    t, t_end, h = -math.log(start), -math.log(end), 0.05
    x_prev, tried = x, 0
    while t < t_end - 1e-5:
        t_next = min(t_end, t + h)
        sigma, sigma_next = math.exp(-t), math.exp(-t_next)
        sigma_down, sigma_up = _down(sigma, sigma_next, end, eta)
        denoised = model(x, sigma)
        callback(tried, sigma, x, denoised)
        eps = (x - denoised) / sigma
        eps_r1 = eps_after(model, x, eps, sigma, sigma * (sigma_down / sigma) ** (1 / 3))
        x_low = step_2(x, eps, eps_r1, sigma, sigma_down, 1 / 3)
        x_high = step_3(model, x, eps, eps_r1, sigma, sigma_down)
        error = step_error(array_of(x_low), array_of(x_high), array_of(x_prev), atol, rtol)
        factor = 1 + math.atan((1 / (error + 1e-8)) ** power - 1)
        if factor >= 0.81:
            x_prev, x, t = x_low, x_high, t_next
            if eta:
                x = x + noise(sigma, sigma_next) * (s_noise * sigma_up)
        h, tried = h * factor, tried + 1
    return x


def _range(sigmas: np.ndarray) -> tuple[int, float, float]:
    """Return the number of steps, the first sigma, the last one above 0. Raises StepsError for an empty range."""
    positive = sigmas[sigmas > 0]
    if len(positive) < 2:
        raise StepsError("DPM-Solver steps in ln sigma: it needs two sigmas above 0, so two steps")
    return len(sigmas) - 1, float(positive[0]), float(positive[-1])


def _down(sigma: float, sigma_next: float, end: float, eta: float) -> tuple[float, float]:
    """Compute ancestral_step with `down` limited to the end of the range."""
    if not eta:
        return sigma_next, 0.0
    down = max(end, ancestral_step(sigma, sigma_next, eta)[0])
    return down, math.sqrt(max(sigma_next**2 - down**2, 0.0))  # sigma_next may differ from the end by rounding
