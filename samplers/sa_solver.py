"""SA-Solver: Adams predictor and corrector for the reverse SDE, with a noise strength tau for each step."""

from collections.abc import Callable

import numpy as np

from refsd.kernels.lagrange_steps import exponential_lagrange_steps
from refsd.samplers.latents import sampler, settle
from refsd.samplers.levels import SD_LEVELS
from refsd.samplers.lms import gauss_legendre
from refsd.samplers.step import intervals, no_callback

# sigma at the step's end -> tau, the noise strength: 0 gives the ODE, 1 the SDE with DDPM's noise
Tau = Callable[[float], float]


def tau_between(start: float, end: float, eta: float = 1.0) -> Tau:
    """Make a tau of eta if start >= sigma >= end, else 0. Source: ComfyUI sa_solver.py, get_tau_interval_func."""
    return lambda sigma: eta if start >= sigma >= end else 0.0


# Between one fifth and four fifths of SD's timesteps. Source: ComfyUI sample_sa_solver.
SD_TAU = tau_between(*(float(SD_LEVELS.to_sigma(t * 999)) for t in (0.8, 0.2)))


# (times, ahead, used, order, rates) -> every step's weights of past values of denoised
Weights = Callable[[np.ndarray, int, np.ndarray, int, np.ndarray], np.ndarray]


def adams_weights(times: np.ndarray, ahead: int, used: np.ndarray, order: int, rates: np.ndarray) -> np.ndarray:
    """Compute every step's weights of denoised: integrate the polynomial in t = -ln sigma through past values.

        b_j = int_start^end m e^(m (t - end)) prod_{k != j} (t - times_k) / (times_j - times_k) dt

    times: [n + 1], start of each step, and the end of the last
    ahead: 0 for a predictor, whose newest value is at the step's start; 1 for a corrector, which has it at the end
    used:  [n] int64, number of values, at most `order`
    rates: [n], m = 1 + tau^2
    -> [n, order], newest first; each row sums to 1 - e^(-m (end - start))
    Integrated with 32-point Gauss-Legendre: exact to rounding if m (end - start) < 20.
    """
    return exponential_lagrange_steps(times, ahead, used, order, rates, *gauss_legendre(32))


def two_weights(times: np.ndarray, ahead: int, used: np.ndarray, order: int, rates: np.ndarray) -> np.ndarray:
    """Compute adams_weights, but simplified for two values: the older has weight m h^2 / 2 / (its time - start).

    In a corrector the newest value, at the step's end, has weight m h / 2.
    Source: Xue et al. 2023 (SA-Solver), appendix D.
    """
    b = adams_weights(times, ahead, used, order, rates)
    at = np.flatnonzero(used == 2)
    h, m = times[at + 1] - times[at], rates[at]
    whole = -np.expm1(-m * h)
    newest = 0.5 * m * h if ahead else whole - 0.5 * m * h**2 / (times[at - 1] - times[at])
    b[at, 0], b[at, 1:2] = newest, (whole - newest)[:, None]
    return b


@sampler
def sa_solver(
    model,
    x,
    sigmas,
    noise,
    callback=no_callback,
    s_noise=1.0,
    tau=SD_TAU,
    predictor=3,
    corrector=4,
    weights=adams_weights,
    tau_at_start=False,
    lower_order_final=False,
    pece=False,
):
    """Sample with SA-Solver: predict x, call the model there, repeat the step with its output. One call a step.

        x' = sigma_next / sigma e^(-tau^2 h) x + sum_j b_j denoised_j + sigma_next sqrt(1 - e^(-2 tau^2 h)) n
        corrected: the same from the previous x, with the same n, and with denoised of x' among the values

    sigmas: [n + 1], falling; a step to 0 gives denoised, and the orders decrease before it
    noise:  called once a step if tau is not 0
    tau:    (sigma at the step's end) -> noise strength
    predictor, corrector: their orders, once there are that many values
    weights: adams_weights or two_weights
    tau_at_start: evaluate tau at the sigma where the step starts, as diffusers does
    lower_order_final: the orders also decrease to 1 before a last sigma above 0; the corrector's is one higher
    pece: also call the model at the corrected x: predict, evaluate, correct, evaluate. Two calls a step
    Source: Xue et al. 2023 (SA-Solver), algorithm 1; ComfyUI sample_sa_solver, sample_sa_solver_pece;
    diffusers SASolverScheduler.
    """
    levels = np.asarray(sigmas[sigmas > 0], np.float64)
    noisy = np.square([tau(level) for level in (levels[:-1] if tau_at_start else levels[1:]).tolist()])
    ups = (s_noise * levels[1:] * np.sqrt(-np.expm1(-2 * noisy * np.diff(-np.log(levels))))).tolist()
    predictors, correctors, decays = _tables(sigmas, noisy, (predictor, corrector), weights, lower_order_final)
    ms: list[np.ndarray] = []
    x_last, n = x, None
    for i, sigma, sigma_next in intervals(sigmas):
        denoised = model(x, sigma)
        callback(i, sigma, x, denoised)
        if i > 0 and (pece or sigma_next > 0):
            x = settle(_step(x_last, decays[i - 1], correctors[i - 1], [denoised, *ms], ups[i - 1], n))
            denoised = model(x, sigma) if pece else denoised
        if sigma_next == 0:
            return denoised
        ms = [denoised, *ms][: max(predictor, corrector)]
        n = noise(sigma, sigma_next) if ups[i] else None
        x_last, x = x, _step(x, decays[i], predictors[i], ms, ups[i], n)
    return x


def _step(x: np.ndarray, decay: float, b: list[float], ms: list[np.ndarray], up: float, n: np.ndarray | None):
    """Compute decay x + sum_j b_j m_j + up n."""
    x = decay * x
    for b_j, m in zip(b, ms, strict=False):
        x = x + b_j * m
    return x if n is None else x + up * n


def _tables(
    sigmas: np.ndarray, noisy: np.ndarray, orders: tuple[int, int], weights: Weights, lower_order_final: bool
):
    """Compute the predictor's, the corrector's and x's weights for every step but a step to 0. noisy: tau^2"""
    times = -np.log(np.asarray(sigmas[sigmas > 0], np.float64))
    h, i = np.diff(times), np.arange(len(times) - 1)
    order, corrector_order = orders
    most = max(orders)
    known, room, corrector_room = np.minimum(i + 1, most), np.full(len(i), most), np.full(len(i), most)
    if sigmas[-1] == 0:
        # A step to 0 returns denoised; the orders decrease before it.
        room = corrector_room = len(sigmas) - 2 - i
    elif lower_order_final:
        room = len(i) - i
        corrector_room = room + 1
    used, corrected = np.minimum(np.minimum(order, known), room), np.minimum(corrector_order, known + 1)
    predictors = weights(times, 0, used, order, 1 + noisy)
    correctors = weights(times, 1, np.minimum(corrected, corrector_room), corrector_order, 1 + noisy)
    return predictors.tolist(), correctors.tolist(), np.exp(-(1 + noisy) * h).tolist()
