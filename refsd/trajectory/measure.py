"""Measure an engine's trajectory against the reference, step by step and as a whole.

Teacher-forced: the latent at call k is compared with what the reference's sampler computes from the engine's own
earlier latents, model outputs and sigmas. That is a sum of a few products, whose rounding is known, and earlier
errors do not count again. Free-running: the whole trajectory is compared with the reference's own. There, roundings
may grow as much as the reference itself amplifies displacements of its latents, so chaotic growth is not an error.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from refsd.golden.case import Case
from refsd.golden.metrics import Metrics, channel_axis, measure, not_asked_for
from refsd.golden.rounding import Bound, gamma, unit
from refsd.numerics.profiles import Numerics
from refsd.numerics.tensor import StoredTensor
from refsd.samplers.levels import SD_LEVELS
from refsd.trajectory import model as analytic
from refsd.trajectory.forms import Forms, forms, sensitivities
from refsd.trajectory.run import (
    FLOW_LEVELS,
    Dump,
    Model,
    by_forms,
    can_be_stepped,
    first_shown,
    from_one,
    levels_of,
    model_of,
    solver_of,
)

# Roundings of a term in one step: no solver has more than a dozen products and sums.
_ROUNDINGS = 16
# Error of ln sigma in functions of sigmas, such as h = ln sigma - ln sigma_next, in units of u (1 + |ln sigma|).
_LOG = 4
# The amplification is computed to first order; this factor covers the higher orders.
_FREE = 2.0

Answer = Mapping[str, np.ndarray]
Inputs = Mapping[str, StoredTensor]


def measure_trajectory(
    case: Case, inputs: Inputs, actual: Answer, truth: Answer, honest: Answer, numerics: Numerics
) -> list[Metrics]:
    """Measure every output in the order of computation: sigmas, then each call, then the free-running trajectory.

    If outputs are missing or have a wrong shape, only those are reported. After an output that is not finite,
    nothing more is measured.
    """
    shapes = [measure(name, actual.get(name), y, honest[name], None, -1) for name, y in truth.items()]
    shapes += not_asked_for(actual, truth)
    broken = [m for m in shapes if m.unwanted or m.found != m.shape]
    if broken:
        return broken
    u = unit(numerics.compute_dtype)
    y = Dump(**{name: np.asarray(actual[name], np.float64) for name in truth})
    levels = np.asarray(truth["sigmas"], np.float64)
    metrics = [_metrics("sigmas", y.sigmas, levels, sigma_limits(case, levels, u), numerics)]
    if not can_be_stepped(case, y.sigmas):
        return metrics
    return metrics + _steps(case, inputs, y, numerics, u)


def _steps(case: Case, inputs: Inputs, y: Dump, numerics: Numerics, u: float) -> list[Metrics]:
    solver, model = solver_of(case), model_of(case)
    noise = np.asarray(inputs["noise"].values(), np.float64)
    sigmas = from_one(y.sigmas) if solver.flow else y.sigmas
    form = forms(solver, sigmas)
    if len(form.rows) != len(y.x) + 1:
        return []
    # The loop ends at the first output that is not finite; earlier ones do not depend on the zeros put in here.
    finite = Dump(**{name: np.where(np.isfinite(a), a, 0.0) for name, a in y.outputs().items()})
    expected, limits = forced(form, finite, noise, u, sensitivities(solver, sigmas))
    shown = np.concatenate([y.x, y.latent[None]])
    metrics = []
    answered = []
    guidances = {"denoised": float(case.params["guidance"]), "uncond": 0.0}
    for k, sigma in enumerate(form.sigmas):
        metrics.append(_metrics(f"x[{k}]", shown[k], expected[k], limits[k], numerics))
        if metrics[-1].not_finite:
            return metrics
        right = model(y.x[k].copy(), float(sigma))
        right = right if isinstance(right, tuple) else (right,)
        answered.append([])
        for (name, guidance), answer in zip(guidances.items(), right, strict=False):
            limit = analytic.limit(y.x[k], float(sigma), guidance, u, solver.flow)
            metrics.append(_metrics(f"{name}[{k}]", getattr(y, name)[k], answer, limit, numerics))
            answered[-1].append(limit)
        if any(m.not_finite for m in metrics):
            return metrics
    metrics.append(_metrics("latent", y.latent, expected[-1], limits[-1], numerics))
    if metrics[-1].not_finite:
        return metrics
    free, grown = displaced(form, sigmas, model, noise, limits, np.array(answered))
    for k in range(1, len(shown)):
        name = f"x[{k}]" if k < len(y.x) else "latent"
        metrics.append(_metrics(f"{name}, free-running", shown[k], free[k], _FREE * grown[k] + limits[k], numerics))
    return metrics


def sigma_limits(case: Case, sigmas: np.ndarray, u: float) -> np.ndarray:
    """Bound the error of an honest engine's sigmas. -> the shape of sigmas

    Unless the model is a flow, the bound is sigma_error. A flow's bound allows a few roundings of sigma, and of the
    timestep 1000 sigma.
    """
    if levels_of(case) is FLOW_LEVELS:
        return gamma(16, u) * np.abs(sigmas) + gamma(4, u) * (sigmas > 0)
    return sigma_error(u) * np.abs(sigmas)


def sigma_error(u: float) -> float:
    """Bound the relative error of sigma, where sigma^2 = 1 / abar - 1.

    abar is a product of t + 1 factors with two roundings each; a few functions add theirs. The subtraction loses
    most at the lowest level, the product at the highest; interpolated sigmas may have either error.
    """
    lowest, highest = (1 + 1 / float(SD_LEVELS.sigmas[i]) ** 2 for i in (0, -1))
    return 0.5 * (gamma(20, u) * lowest + gamma(2 * len(SD_LEVELS.sigmas) + 20, u) * highest)


def forced(form: Forms, y: Dump, noise: np.ndarray, u: float, slopes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Predict each call's latent and the final one from the engine's own data, and bound the engine's error.

        limit = gamma(16) sum |coefficient| |term| + 4 u sum_j (1 + |ln sigma_j|) |d / d ln sigma_j|

    -> latents and limits, each [calls + 1, N, C, H, W]; the latent at k = 0 is `first_shown`
    """
    terms = np.concatenate([y.x, y.answers(), noise[1 : 1 + form.draws]])
    flat = terms.reshape(len(terms), -1)
    expected = form.rows @ flat
    limits = gamma(_ROUNDINGS, u) * (np.abs(form.rows) @ np.abs(flat))
    positive = y.sigmas[y.sigmas > 0]
    for sigma, slope in zip(positive, slopes, strict=True):
        limits = limits + _LOG * u * (1 + abs(np.log(sigma))) * np.abs(slope @ flat)
    shape = (len(expected), *y.latent.shape)
    expected, limits = expected.reshape(shape), limits.reshape(shape)
    expected[0] = first_shown(form, noise, y.sigmas[0])
    drawn = noise[0] * y.sigmas[0]
    limits[0] = gamma(2, u) * np.abs(drawn) + gamma(_ROUNDINGS, u) * np.abs(expected[0] - drawn)
    return expected, limits


def displaced(
    form: Forms,
    sigmas: np.ndarray,
    model: Model,
    noise: np.ndarray,
    limits: np.ndarray,
    answered: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Run the reference on these sigmas, and measure how far it moves if each call is displaced by its limit.

    limits:   [calls + 1, ...], limits of each call's latent and of the final latent
    answered: [calls, answers, ...], limits of the model outputs
    -> [calls + 1, ...] twice: the run's latents; the sum of the displacements that reach each call
    """
    base = _states(by_forms(form, sigmas, model, noise))
    signs = np.sign(noise[0]) + (noise[0] == 0)
    grown = np.zeros_like(base)
    still = [0.0] * form.answers
    for j in range(len(answered)):
        pushes: list[tuple[Any, list[Any]]] = [(limits[j] * signs, still)]
        for i, limit in enumerate(answered[j]):
            pushes.append((0.0, [*still[:i], limit * signs, *still[i + 1 :]]))
        for dx, dy in pushes:
            moved = _states(by_forms(form, sigmas, _pushed(model, j, dx, dy), noise))
            grown += np.abs(moved - base)
    return base, grown


def _states(y: Dump) -> np.ndarray:
    return np.concatenate([y.x, y.latent[None]])


def _pushed(model: Model, call: int, dx, dy: list) -> Model:
    """Wrap the model: at one call, add dx to x (for the sampler too) and dy to the outputs."""
    calls = iter(range(1 << 30))

    def pushed(x: np.ndarray, sigma: float):
        if next(calls) != call:
            return model(x, sigma)
        x += dx
        answer = model(x, sigma)
        return tuple(y + d for y, d in zip(answer if isinstance(answer, tuple) else (answer,), dy, strict=True))

    return pushed


def _metrics(name: str, actual: np.ndarray, truth: np.ndarray, limit: np.ndarray, numerics: Numerics) -> Metrics:
    honest = truth.astype(numerics.compute_dtype).astype(np.float64)
    return measure(name, actual, truth, honest, Bound(limit, limit / 4), channel_axis(truth))
