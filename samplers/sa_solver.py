"""SA-Solver: Adams methods for the reverse SDE, as a predictor and a corrector, with noise where one wants it."""

import math
from collections.abc import Callable

import numpy as np

from refsd.kernels.combine import combine
from refsd.samplers.levels import SD_LEVELS
from refsd.samplers.parameterization import Denoiser
from refsd.samplers.step import Callback, StepNoise, intervals

# sigma that is stepped to -> tau, the share of noise: 0 is the ODE, 1 the SDE whose noise is DDPM's
Tau = Callable[[float], float]


def tau_between(start: float, end: float, eta: float = 1.0) -> Tau:
    """eta where start >= sigma >= end, else 0. Source: ComfyUI sa_solver.py, get_tau_interval_func."""
    return lambda sigma: eta if start >= sigma >= end else 0.0


# From a fifth of SD's timesteps on to four fifths. Source: ComfyUI sample_sa_solver.
SD_TAU = tau_between(*(float(SD_LEVELS.to_sigma(t * 999)) for t in (0.8, 0.2)))


def adams_weights(times: list[float], start: float, end: float, m: float) -> np.ndarray:
    """Weights of past values of denoised, by the polynomial in t = -ln sigma through them.

        b_j = int_start^end m e^(m (t - end)) prod_{k != j} (t - times_k) / (times_j - times_k) dt

    times: [order]; m: 1 + tau^2; -> [order], whose sum is 1 - e^(-m (end - start))
    32-point Gauss-Legendre: exact to rounding while m (end - start) is below 20.
    """
    points, weights = np.polynomial.legendre.leggauss(32)
    t = (start + end) / 2 + (end - start) / 2 * points
    weights = (end - start) / 2 * weights * m * np.exp(m * (t - end))
    basis = [[(t - b) / (a - b) for b in times if b != a] for a in times]
    return np.array([np.sum(weights * np.prod(factors, axis=0)) for factors in basis])


def two_weights(times: list[float], start: float, end: float, m: float) -> np.ndarray:
    """adams_weights of two values, simplified: the older weighs m h^2 / 2 / (times_1 - start).

    In a corrector, whose times_0 is end, the newer weighs m h / 2. Other numbers of values: adams_weights.
    Source: Xue et al. 2023 (SA-Solver), appendix D.
    """
    if len(times) != 2:
        return adams_weights(times, start, end, m)
    h = end - start
    whole = -math.expm1(-m * h)
    newest = 0.5 * m * h if times[0] == end else whole - 0.5 * m * h**2 / (times[1] - start)
    return np.array([newest, whole - newest])


def sa_solver(
    model: Denoiser,
    x: np.ndarray,
    sigmas: np.ndarray,
    noise: StepNoise,
    callback: Callback | None = None,
    s_noise: float = 1.0,
    tau: Tau = SD_TAU,
    predictor: int = 3,
    corrector: int = 4,
    weights: Callable[..., np.ndarray] = adams_weights,
) -> np.ndarray:
    """A predicted x is shown to the model, and the step there taken again with what it said. One call a step.

        x' = sigma_next / sigma e^(-tau^2 h) x + sum_j b_j denoised_j + sigma_next sqrt(1 - e^(-2 tau^2 h)) n
        corrected: the same from the last x, with the same n, and with denoised of x' among the values

    x:      latents at sigmas[0]
    sigmas: [n + 1], falling; a step to 0 takes denoised, and the orders fall before it
    noise:  drawn from once a step where tau is not 0
    tau:    of the sigma that is stepped to
    predictor, corrector: their orders, where there are so many values yet
    weights: adams_weights or two_weights
    -> latents at sigmas[-1], dtype of x
    Source: Xue et al. 2023 (SA-Solver), algorithm 1; ComfyUI sample_sa_solver; diffusers SASolverScheduler.
    """
    return _sa_solver(model, x, sigmas, noise, callback, s_noise, tau, (predictor, corrector), weights, False)


def sa_solver_pece(
    model: Denoiser,
    x: np.ndarray,
    sigmas: np.ndarray,
    noise: StepNoise,
    callback: Callback | None = None,
    s_noise: float = 1.0,
    tau: Tau = SD_TAU,
    predictor: int = 3,
    corrector: int = 4,
    weights: Callable[..., np.ndarray] = adams_weights,
) -> np.ndarray:
    """sa_solver that asks the model again about the corrected x: predict, evaluate, correct, evaluate.

    Arguments: sa_solver's. Two calls a step. Source: ComfyUI sample_sa_solver_pece.
    """
    return _sa_solver(model, x, sigmas, noise, callback, s_noise, tau, (predictor, corrector), weights, True)


def _sa_solver(model, x, sigmas, noise, callback, s_noise, tau, orders, weights, again):
    steps = len(sigmas) - 1
    times = [-math.log(s) if s > 0 else math.inf for s in map(float, sigmas)]
    past: list[np.ndarray] = []
    start, fresh, tau_now = x, (), 0.0

    def stepped(x, i, order, known):
        """To times[i + 1] from the `order` newest values, of which the first is `known`'s."""
        m, h = 1 + tau_now**2, times[i + 1] - times[i]
        nodes = [times[known - k] for k in range(order)]
        b = weights(nodes, times[i], times[i + 1], m).tolist()
        values = [part for term in zip(b, past[:order], strict=True) for part in term]
        return combine(math.exp(-m * h), x, *values, *fresh)

    for i, sigma, sigma_next in intervals(sigmas):
        denoised = model(x, sigma)
        if callback:
            callback(i, sigma, x, denoised)
        past = [denoised, *past[: max(orders) - 1]]
        room = steps - i if sigmas[-1] == 0 else max(orders) + 1
        if i > 0 and (sigma_next > 0 or again):
            x = stepped(start, i - 1, min(orders[1], len(past), room), i)
            if again:
                denoised = model(x, sigma)
                past[0] = denoised
        if sigma_next == 0:
            return denoised
        start, tau_now, fresh = x, tau(sigma_next), ()
        if tau_now and s_noise:
            spread = math.sqrt(-math.expm1(-2 * tau_now**2 * (times[i + 1] - times[i])))
            fresh = (sigma_next * spread * s_noise, noise(sigma, sigma_next))
        x = stepped(start, i, min(orders[0], len(past), room - 1), i)
    return x
