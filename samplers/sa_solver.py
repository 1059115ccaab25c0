"""SA-Solver: Adams methods for the reverse SDE, as a predictor and a corrector, with noise where one wants it."""

import math
from collections.abc import Callable

import numpy as np

from refsd.kernels.combine import combine
from refsd.kernels.combine_twice import combine_twice
from refsd.kernels.lagrange import exponential_lagrange_integrals
from refsd.samplers.levels import SD_LEVELS
from refsd.samplers.lms import gauss_legendre
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
    return exponential_lagrange_integrals(np.array(times), start, end, m, *gauss_legendre(32))


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
    decayed_c, correct, old = 1.0, [], ()

    def stepped(i, order, known):
        """Of the step to times[i + 1]: the weight of x, and of the `order` newest values, the first `known`'s."""
        m, h = 1 + tau_now**2, times[i + 1] - times[i]
        b = weights(times[known - order + 1 : known + 1][::-1], times[i], times[i + 1], m).tolist()
        return math.exp(-m * h), b

    for i, sigma, sigma_next in intervals(sigmas):
        denoised = model(x, sigma)
        if callback:
            callback(i, sigma, x, denoised)
        past = [denoised, *past[: max(orders) - 1]]
        room = steps - i if sigmas[-1] == 0 else max(orders) + 1
        corrects = i > 0 and (sigma_next > 0 or again)
        if corrects:
            decayed_c, correct, old = *stepped(i - 1, min(orders[1], len(past), room), i), fresh
            if again:
                x = combine(decayed_c, start, *_terms(correct, past), *old)
                denoised = past[0] = model(x, sigma)
        if sigma_next == 0:
            return denoised
        tau_now, fresh = tau(sigma_next), ()
        if tau_now and s_noise:
            spread = math.sqrt(-math.expm1(-2 * tau_now**2 * (times[i + 1] - times[i])))
            fresh = (sigma_next * spread * s_noise, noise(sigma, sigma_next))
        decayed, predict = stepped(i, min(orders[0], len(past), room - 1), i)
        if again or not corrects:
            start, x = x, combine(decayed, x, *_terms(predict, past), *fresh)
        else:
            # x, the values that either knows, the last noise and the new
            known = max(len(correct), len(predict))
            first = [decayed_c, *_filled(correct, known), *old[:1], *[0.0] * len(fresh[:1])]
            late = [0.0, *_filled(predict, known), *[0.0] * len(old[:1]), *fresh[:1]]
            start, x = combine_twice(first, decayed, late, [start, *past[:known], *old[1:], *fresh[1:]])
    return x


def _terms(weights, values) -> list:
    """As combine takes them."""
    return [part for term in zip(weights, values, strict=False) for part in term]


def _filled(weights: list[float], length: int) -> list[float]:
    return weights + [0.0] * (length - len(weights))
