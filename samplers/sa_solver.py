"""SA-Solver: Adams methods for the reverse SDE, as a predictor and a corrector, with noise where one wants it."""

from collections.abc import Callable

import numpy as np

from refsd.kernels.combine import combine
from refsd.kernels.combine_twice import combine_twice
from refsd.kernels.lagrange_steps import exponential_lagrange_steps
from refsd.samplers.levels import SD_LEVELS
from refsd.samplers.lms import gauss_legendre
from refsd.samplers.parameterization import Denoiser
from refsd.samplers.step import Callback, Signal, StepNoise, exploding_signal, intervals

# sigma that is stepped to -> tau, the share of noise: 0 is the ODE, 1 the SDE whose noise is DDPM's
Tau = Callable[[float], float]


def tau_between(start: float, end: float, eta: float = 1.0) -> Tau:
    """eta where start >= sigma >= end, else 0. Source: ComfyUI sa_solver.py, get_tau_interval_func."""
    return lambda sigma: eta if start >= sigma >= end else 0.0


# From a fifth of SD's timesteps on to four fifths. Source: ComfyUI sample_sa_solver.
SD_TAU = tau_between(*(float(SD_LEVELS.to_sigma(t * 999)) for t in (0.8, 0.2)))


# times, ahead, used, order, rates -> of every step, the weights of past values of denoised
Weights = Callable[[np.ndarray, int, np.ndarray, int, np.ndarray], np.ndarray]


def adams_weights(times: np.ndarray, ahead: int, used: np.ndarray, order: int, rates: np.ndarray) -> np.ndarray:
    """By the polynomial in t = -ln sigma through the last values of denoised, of every step at once.

        b_j = int_start^end m e^(m (t - end)) prod_{k != j} (t - times_k) / (times_j - times_k) dt

    times: [n + 1], from each to the next a step
    ahead: 0: the newest value is from the step's start, as a predictor knows it; 1: from its end, a corrector's
    used:  [n] int64, how many values, at most `order`; rates: [n], m = 1 + tau^2
    -> [n, order], newest first; a row's sum is 1 - e^(-m (end - start))
    32-point Gauss-Legendre: exact to rounding while m (end - start) is below 20.
    """
    return exponential_lagrange_steps(times, ahead, used, order, rates, *gauss_legendre(32))


def two_weights(times: np.ndarray, ahead: int, used: np.ndarray, order: int, rates: np.ndarray) -> np.ndarray:
    """adams_weights, simplified where there are two values: the older weighs m h^2 / 2 / (its time - start).

    In a corrector, whose newest value is at the end, that one weighs m h / 2.
    Source: Xue et al. 2023 (SA-Solver), appendix D.
    """
    b = adams_weights(times, ahead, used, order, rates)
    at = np.flatnonzero(used == 2)
    h, m = times[at + 1] - times[at], rates[at]
    whole = -np.expm1(-m * h)
    newest = 0.5 * m * h if ahead else whole - 0.5 * m * h**2 / (times[at - 1] - times[at])
    b[at, 0], b[at, 1:2] = newest, (whole - newest)[:, None]
    return b


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
    weights: Weights = adams_weights,
    signal: Signal = exploding_signal,
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
    signal: what the data weigh in x, for in_flow_time
    -> latents at sigmas[-1], dtype of x
    Source: Xue et al. 2023 (SA-Solver), algorithm 1; ComfyUI sample_sa_solver; diffusers SASolverScheduler.
    """
    orders = predictor, corrector
    return _sa_solver(model, x, sigmas, noise, callback, s_noise, tau, orders, weights, signal, False)


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
    weights: Weights = adams_weights,
    signal: Signal = exploding_signal,
) -> np.ndarray:
    """sa_solver that asks the model again about the corrected x: predict, evaluate, correct, evaluate.

    Arguments: sa_solver's. Two calls a step. Source: ComfyUI sample_sa_solver_pece.
    """
    orders = predictor, corrector
    return _sa_solver(model, x, sigmas, noise, callback, s_noise, tau, orders, weights, signal, True)


def _sa_solver(model, x, sigmas, noise, callback, s_noise, tau, orders, weights, signal, again):
    most = max(orders)
    predictors, correctors, decays, ups, both = _tables(sigmas, s_noise, tau, orders, weights, signal)
    past: list[np.ndarray] = []
    start, n = x, None
    for i, sigma, sigma_next in intervals(sigmas):
        denoised = model(x, sigma)
        if callback:
            callback(i, sigma, x, denoised)
        # Where there are not so many values yet, their weights are 0.
        past = [denoised, *past[: most - 1]] if past else [denoised] * most
        if again and i > 0:
            x = combine(decays[i - 1], start, *_terms(correctors[i - 1][: orders[1]], past), ups[i - 1], n)
            denoised = past[0] = model(x, sigma)
        if sigma_next == 0:
            return denoised
        n_last, n = n, noise(sigma, sigma_next) if ups[i] else None
        if again or i == 0:
            start, x = x, combine(decays[i], x, *_terms(predictors[i][: orders[0]], past), ups[i], n)
        else:
            # The last step once more, from where it began and with what the model said, and the next from there.
            x = start
            known = [start, *past, denoised if n_last is None else n_last, denoised if n is None else n]
            start, x = combine_twice(both[i], known)
    return x


def _tables(sigmas, s_noise, tau, orders, weights, signal):
    """Of every step but one to 0: weights of the past values, before and after it; of x; of the noise.

    And of x, the past values, both noises, as combine_twice takes them: a step's corrector and the next predictor.
    """
    levels = np.asarray(sigmas[sigmas > 0], np.float64)
    times = -np.log(levels)
    h, i = np.diff(times), np.arange(len(times) - 1)
    known, most = np.minimum(i + 1, max(orders)), max(orders)
    # A step to 0 takes denoised, and before it the orders fall.
    room = len(sigmas) - 2 - i if sigmas[-1] == 0 else most
    noisy = np.square([tau(level) for level in levels[1:].tolist()])
    signals = np.array([signal(level) for level in levels.tolist()])
    scale = signals[1:, None]
    predictors = scale * weights(times, 0, np.minimum(np.minimum(orders[0], known), room), most, 1 + noisy)
    correctors = scale * weights(times, 1, np.minimum(np.minimum(orders[1], known + 1), room), most, 1 + noisy)
    decays = signals[1:] / signals[:-1] * np.exp(-(1 + noisy) * h)
    ups = signals[1:] * s_noise * levels[1:] * np.sqrt(-np.expm1(-2 * noisy * h))
    both = np.zeros((len(h), 2 * most + 7))
    both[1:, 0], both[1:, 1 : most + 1], both[1:, most + 1] = decays[:-1], correctors[:-1], ups[:-1]
    both[:, most + 3], both[:, most + 5 : -2], both[:, -1] = decays, predictors, ups
    return predictors.tolist(), correctors.tolist(), decays.tolist(), ups.tolist(), list(both)


def _terms(weights, values) -> list:
    """As combine takes them."""
    return [part for term in zip(weights, values, strict=False) for part in term]
