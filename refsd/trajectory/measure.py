"""An engine's trajectory against the reference: each step from the engine's own latents, and the whole of it.

Teacher-forced: what the engine showed its model at call k must be what the sampler makes of the engine's own
earlier latents, answers and sigmas: a sum of a few products, whose rounding is known. Nothing is inherited there.
Free-running, those roundings grow as the reference itself grows them, which is measured by displacing it: chaos is
no error.
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
    from_one,
    levels_of,
    model_of,
    solver_of,
)

# Roundings that a term goes through in one step of any solver: at most a dozen products and sums.
_ROUNDINGS = 16
# Functions of sigmas, such as h = ln sigma - ln sigma_next: how far ln sigma may be off, in u (1 + |ln sigma|).
_LOG = 4
# Displacements are of first order; the engine's own are not larger than this times what they become.
_FREE = 2.0

Answer = Mapping[str, np.ndarray]
Inputs = Mapping[str, StoredTensor]


def measure_trajectory(
    case: Case, inputs: Inputs, found: Answer, truth: Answer, honest: Answer, numerics: Numerics
) -> list[Metrics]:
    """Every output in the order of computation: sigmas, then call by call, then the trajectory as it ran.

    An output that is missing or misshapen is all that is measured; nothing is after one that is not finite.
    """
    shapes = [measure(name, found.get(name), y, honest[name], None, -1) for name, y in truth.items()]
    shapes += not_asked_for(found, truth)
    broken = [m for m in shapes if m.unwanted or m.found != m.shape]
    if broken:
        return broken
    u = unit(numerics.compute_dtype)
    y = Dump(**{name: np.asarray(found[name], np.float64) for name in truth})
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
    # What is computed up to the first number that is not finite does not depend on it; there the loop ends.
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
    """How far an honest engine's sigmas may be from these: its levels are a product, or a flow's a quotient.

    A flow's: a few roundings of the sigma, and of a timestep of 1000, of which sigma is a thousandth.
    """
    if levels_of(case) is FLOW_LEVELS:
        return gamma(16, u) * np.abs(sigmas) + gamma(4, u) * (sigmas > 0)
    return sigma_error(u) * np.abs(sigmas)


def sigma_error(u: float) -> float:
    """Relative: sigma^2 = 1 / abar - 1, abar a product of t + 1 factors of two roundings each, and a few functions.

    At the lowest level the subtraction costs most, at the highest the product; an interpolation inherits either.
    """
    lowest, highest = (1 + 1 / float(SD_LEVELS.sigmas[i]) ** 2 for i in (0, -1))
    return 0.5 * (gamma(20, u) * lowest + gamma(2 * len(SD_LEVELS.sigmas) + 20, u) * highest)


def forced(form: Forms, y: Dump, noise: np.ndarray, u: float, slopes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What each call should have been shown, and the end, from the engine's own states; and how far it may be off.

        limit = gamma(16) sum |coefficient| |term| + 4 u sum_j (1 + |ln sigma_j|) |d / d ln sigma_j|

    -> [calls + 1, N, C, H, W] twice; at k = 0 it is the first noise times sigma_0
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
    expected[0] = noise[0] * y.sigmas[0]
    limits[0] = gamma(2, u) * np.abs(expected[0])
    return expected, limits


def displaced(
    form: Forms,
    sigmas: np.ndarray,
    model: Model,
    noise: np.ndarray,
    limits: np.ndarray,
    answered: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """The reference's own run on these sigmas, and how far it moves when each call is displaced by its limit.

    limits:   [calls + 1, ...], of what the model is shown, and of the end
    answered: [calls, answers, ...], of what it answers
    -> [calls + 1, ...] twice: the run; the sum of the displacements that have come down to each call
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


def amplification(
    form: Forms, sigmas: np.ndarray, model: Model, noise: np.ndarray, delta: float = 1e-6
) -> np.ndarray:
    """How an error made at call j has grown at call k, in RMS: [calls, calls + 1], 1 where j = k, 0 before it."""
    base = by_forms(form, sigmas, model, noise)
    gains = np.zeros((len(base.x), len(base.x) + 1))
    signs = np.sign(noise[0]) + (noise[0] == 0)
    still = [0.0] * form.answers
    for j in range(len(base.x)):
        size = delta * float(np.sqrt(np.mean(base.x[j] ** 2)))
        moved = _states(by_forms(form, sigmas, _pushed(model, j, size * signs, still), noise))
        apart = np.sqrt(np.mean((moved - _states(base)) ** 2, axis=(1, 2, 3, 4))) / size
        apart[j] = 1.0
        gains[j] = apart
    return gains


def _states(y: Dump) -> np.ndarray:
    return np.concatenate([y.x, y.latent[None]])


def _pushed(model: Model, call: int, dx, dy: list) -> Model:
    """The model, but that what it and the sampler see at one call, and what it answers, are displaced."""
    calls = iter(range(1 << 30))

    def pushed(x: np.ndarray, sigma: float):
        if next(calls) != call:
            return model(x, sigma)
        x += dx
        answer = model(x, sigma)
        return tuple(y + d for y, d in zip(answer if isinstance(answer, tuple) else (answer,), dy, strict=True))

    return pushed


def _metrics(name: str, found: np.ndarray, truth: np.ndarray, limit: np.ndarray, numerics: Numerics) -> Metrics:
    honest = truth.astype(numerics.compute_dtype).astype(np.float64)
    return measure(name, found, truth, honest, Bound(limit, limit / 4), channel_axis(truth))
