"""Bugs of samplers, schedules and generators: sigmas by hand, and whole sampling loops written once more."""

import itertools

import numpy as np
from injection import Bug, Injection, wrong_answer, wrong_parts

from refsd.samplers.levels import FlowLevels
from refsd.trajectory.run import Dump, model_of, sigmas_of

_ABAR = np.cumprod(1 - np.linspace(0.00085**0.5, 0.012**0.5, 1000) ** 2)
SIGMAS = np.sqrt((1 - _ABAR) / _ABAR)


def sampled(cases: tuple[str, ...], place: str, cause: str, loop) -> Injection:
    """loop: model, x, sigmas, draws (an iterator), case -> the end; what the model is shown is recorded."""

    def answer(case, inputs, y):
        dtype = y["x"].dtype
        noise, sigmas = inputs["noise"].values().astype(dtype), sigmas_of(case)
        shown, said, right = [], [], model_of(case)

        def model(x, sigma):
            shown.append(x.copy())
            said.append(right(x, sigma))
            return said[-1]

        latent = loop(model, noise[0] * dtype.type(sigmas[0]), sigmas, iter(noise[1:]), case)
        return Dump(sigmas, np.stack(shown), np.stack(said), latent.astype(dtype)).outputs()

    return Injection(tuple(f"trajectory/{name}" for name in cases), Bug(answer=answer), place, cause)


def _timestep(sigma: float) -> float:
    return float(np.interp(np.log(sigma), np.log(SIGMAS), np.arange(1000)))


# --- loops -------------------------------------------------------------------------------------------------------


def _lcm_flow(model, x, sigmas, draws, case):
    for sigma, to in itertools.pairwise(sigmas):
        x = model(x, float(sigma))
        if to > 0:
            x = (x + to * next(draws)).astype(x.dtype)
    return x


def _lms(model, x, sigmas, draws, case):
    """Adams-Bashforth of order 4 whose history is read as newest, newest, second newest."""
    slopes = []
    for i, (sigma, to) in enumerate(itertools.pairwise(sigmas)):
        denoised = model(x, float(sigma))
        slopes.insert(0, (x - denoised) / x.dtype.type(sigma))
        order = min(i + 1, 4)
        nodes = sigmas[i - np.arange(order)]
        points, weights = np.polynomial.legendre.leggauss(8)
        at = (to + sigma) / 2 + (to - sigma) / 2 * points
        past = [slopes[k] for k in (0, 1, 1, 2)[:order] if k < len(slopes)] if order == 4 else slopes[:order]
        for j in range(order):
            others = np.prod(
                [(at - nodes[k]) / (nodes[j] - nodes[k]) for k in range(order) if k != j] or [1 + 0 * at], 0
            )
            x = x + x.dtype.type((to - sigma) / 2 * (weights @ others)) * past[j]
    return x


def _own_table(model, x, sigmas, draws, case):
    """Euler on sigmas of its own: each 1000 / N-th of the trained ones."""
    N = len(sigmas) - 1
    own = np.append(SIGMAS[(np.arange(N)[::-1] + 1) * (1000 // N) - 1], 0.0)
    x = x * x.dtype.type(own[0] / sigmas[0])
    for sigma, to in itertools.pairwise(own):
        denoised = model(x, float(sigma))
        x = x + (x - denoised) / x.dtype.type(sigma) * x.dtype.type(to - sigma)
    return x


def _second_order_at_the_end(model, x, sigmas, draws, case):
    """DPM-Solver++(2S) in steps of a schedule, orders 1, 2, 1, 2, ...: the last of an even number too."""
    for i, (sigma, to) in enumerate(itertools.pairwise(sigmas)):
        denoised = model(x, float(sigma))
        if i % 2 == 0:
            start, first, begun = x, denoised, sigma
        if to == 0:
            if i % 2 == 0:
                return denoised
            h = np.log(begun / 1e-6)
            return denoised + x.dtype.type(1 / (2 * np.log(begun / sigma) / h)) * (denoised - first)
        h, ratio = np.log(begun / to), to / begun
        x = x.dtype.type(ratio) * start + x.dtype.type(1 - ratio) * first
        if i % 2 == 1:
            r = np.log(begun / sigma) / h
            x = x + x.dtype.type((1 - ratio) / (2 * r)) * (denoised - first)
    return x


# --- sigmas ------------------------------------------------------------------------------------------------------


class _TwiceOne(FlowLevels):
    def to_sigma(self, t):
        s = (np.asarray(t, np.float64) + 2) / 1000
        return self.shift * s / (1 + (self.shift - 1) * s)


def _end_at_lowest(case, values, y):
    sigmas = np.array(y["sigmas"], np.float64)
    if sigmas[-1] != 0 or len(sigmas) < 3:
        return None
    sigmas[-1] = sigmas[-2]
    return {"sigmas": sigmas}


def _linspace_to_zero(params, card, levels):
    """linspace(1, 0, N) and 0 once more, shifted."""
    from refsd.stages.sigmas import RULE

    if not isinstance(levels, FlowLevels):
        return RULE.spacing(params, card, levels)
    a = levels.shift

    def spacing(n):
        s = np.append(np.linspace(1, 0, n), 0.0)
        return a * s / (1 + (a - 1) * s)

    return spacing


def _shifted_after(params, card, levels):
    from refsd.stages.sigmas import RULE

    if not isinstance(levels, FlowLevels) or params["schedule"] != "flow_linspace":
        return RULE.spacing(params, card, levels)
    a = levels.shift
    return lambda n: np.append((lambda s: a * s / (1 + (a - 1) * s))(np.linspace(1, 0.001, n)), 0.0)


def _static_shift(shift, multiplier):
    """a t / (1 + (a - 1) t) with the logarithm where Flux has its exponential; schnell has no shift."""
    return FlowLevels(float(np.log(shift)) if multiplier == 1.0 != shift else shift, multiplier)


def _betas_half(betas):
    return np.float64(np.float16(np.cumprod(1 - betas)))


def _nearest(levels, sigma):
    if len(levels.sigmas) != 1000 or abs(levels.sigmas[-1] - SIGMAS[-1]) > 1e-6:
        return levels.to_t(sigma)
    return float(np.argmin(np.abs(np.log(levels.sigmas) - np.log(sigma))))


class _Thousandths:
    def __init__(self):
        from refsd.samplers.levels import EdmLevels

        self._right = EdmLevels()
        self.sigmas = np.exp(4 * np.arange(1000) / 1000)

    def to_sigma(self, t):
        return np.exp(4 * np.asarray(t) / 1000)

    def to_t(self, sigma):
        return 0.25 * float(np.log(sigma))


def _down_by_a_share(case, values, y):
    p = case.params
    previous = np.maximum(y["timesteps"] - 1000 // p["steps"], -1)
    before = np.where(previous < 0, 1.0, _ABAR[np.clip(previous, 0, 999).astype(int)])
    if "share" in p or np.array_equal(previous, y["previous"]):
        return None
    kept = np.asarray(y["kept"], np.float64)
    variance = (1 - before) / (1 - kept) * (1 - kept / before)
    noised = np.where(previous < 0, 0, SIGMAS[np.clip(previous, 0, 999).astype(int)])
    deviation = p.get("eta", 1.0) * np.sqrt(variance)
    return {"previous": previous, "kept_before": before, "deviation": deviation, "mask_sigma": noised}


def _always_at_begin(case, values, y):
    t = y["timesteps"].astype(int)
    return {"mask_sigma": np.full(len(t), SIGMAS[t[0]])}


def _linear_variance(case, values, y):
    share = case.params.get("share")
    if share is None:
        return None
    kept, before = (np.asarray(y[name], np.float64) for name in ("kept", "kept_before"))
    most = 1 - kept / before
    least = (1 - before) / (1 - kept) * most
    return {"deviation": case.params.get("eta", 1.0) * np.sqrt(share * most + (1 - share) * least)}


# --- noise -------------------------------------------------------------------------------------------------------


def _first_again(case, values, y):
    return {"step_noise": np.concatenate([y["noise"][None], y["step_noise"][:-1]])}


def _anybodys(case, values, y):
    return {"step_noise": np.random.default_rng().standard_normal(y["step_noise"].shape)}


def _variance_preserving(case, values, y):
    if case.params["space"] != "ve":
        return None
    sigma = case.params["sigma"]
    abar = 1 / (1 + sigma**2)
    return {"start": np.sqrt(abar) * values["latent"] + np.sqrt(1 - abar) * y["noise"]}


def _exploding(case, values, y):
    if case.params["space"] != "flow":
        return None
    return {"start": values["latent"] + case.params["sigma"] * y["noise"]}


def _single_counter(case, values, y):
    """Every number has a counter of its own, however many there are."""
    if case.params.get("rng") != "torch-cuda":
        return None
    from refsd.samplers.noise import PhiloxNv

    items, shape, seed = len(y["noise"]), y["noise"].shape[1:], case.params["seed"]
    if case.params.get("one_stream"):
        return {"noise": PhiloxNv(seed).randn((items, *shape))}
    return {"noise": np.stack([PhiloxNv(seed + b).randn(shape) for b in range(items)])}


STEPS: dict[str, Injection] = {
    "gen-16": wrong_answer("noising/*", "noise", "counter", _single_counter),
    "rng-01": wrong_answer("noising/*", "step_noise", "first noise again", _first_again),
    "rng-04": wrong_answer("noising/*", "step_noise", "same answer twice", _anybodys),
    "smp-01": wrong_parts("sigmas/flow-*", "sigmas", "i \\+ 2", flow=_TwiceOne),
    "smp-03": sampled(("euler/karras",), "sigmas|x", "steps on", _own_table),
    "smp-04": sampled(("flow/lcm/simple",), "x|latent", "not the flow's|1 - sigma", _lcm_flow),
    "smp-07": wrong_parts("sigmas/flux*", "sigmas", "logarithm|shift", flow=_static_shift),
    "smp-09": sampled(("lms/karras",), "x|latent", "history", _lms),
    "smp-11": wrong_answer("noising/*", "start", "variance-preserving", _variance_preserving),
    "smp-13": wrong_answer("steps/*", "mask_sigma", "first level", _always_at_begin),
    "smp-14": wrong_answer("steps/*", "previous", "T / steps", _down_by_a_share),
    "smp-17": wrong_answer("sigmas/flow*", "sigmas: step", "lowest sigma", _end_at_lowest),
    "smp-18": wrong_parts("sigmas/flow*", "sigmas", "redundant|to 0|flow_linspace", spacing=_linspace_to_zero),
    "smp-21": wrong_parts("sigmas/flow*", "sigmas", "unshifted linspace", spacing=_shifted_after),
    "smp-23": wrong_answer("steps/*", "deviation", "linear", _linear_variance),
    "smp-25": wrong_parts("sigmas/sd-zero*", "sigmas", "zero terminal SNR left out", zero_snr=lambda kept: kept),
    "smp-26": wrong_parts("sigmas/sd*", "sigmas", "float16", kept=_betas_half),
    "smp-29": wrong_answer("noising/*", "start", "variance-exploding|latent whole", _exploding),
    "smp-31": wrong_parts("sigmas/sd*", "timesteps", "nearest", to_t=_nearest),
    "smp-33": sampled(("dpmpp2s/*",), "x|latent", "second order", _second_order_at_the_end),
    "smp-40": wrong_parts("sigmas/edm*", "sigmas|timesteps", "4 t / 1000", edm=_Thousandths),
}
