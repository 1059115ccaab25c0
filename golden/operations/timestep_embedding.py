"""Sines and cosines of a timestep."""

import ml_dtypes
import numpy as np

from refsd.golden.bounds import FUNCTION, Run
from refsd.golden.case import Case
from refsd.golden.mutations import Wrong, other_input, other_params
from refsd.golden.operation import REQUIRED, Mutant, Operation, values
from refsd.golden.recipe import Recipe
from refsd.golden.rounding import Bound, Terms


def _bound(run: Run) -> Bound:
    """cos(s t f), f = exp(-r), r = ln(P) j / (half - shift): f loses 2 u r + 4 u, the angle 2 u more."""
    t, dt = run.inputs["t"][:, None], run.moved("t")[:, None]
    half, scale = run.params["dim"] // 2, abs(run.params["scale"])
    ratio = np.log(run.params["max_period"]) * np.arange(half) / max(half - run.params["freq_shift"], 1)
    f = np.exp(-ratio)
    angle = scale * (np.abs(t) * f * run.u * (2 * ratio + FUNCTION + 2) + dt * f)
    beyond = np.isinf(run.between(max(scale, 1.0) * np.abs(t)))  # scale t, where it is stored
    limit = np.where(beyond, np.inf, np.minimum(angle, 2.0) + FUNCTION * run.u)
    zero = np.zeros((t.shape[0], run.params["dim"] % 2))
    limit = np.concatenate([limit, limit, zero], axis=1)
    return run.rounded(Terms().add(limit, limit / FUNCTION))


def embedded(t, params, last=0, interleaved=False, by_rows=False):
    half, dim = params["dim"] // 2, params["dim"]
    f = np.exp(-np.log(params["max_period"]) * np.arange(half) / (half - params["freq_shift"] - last))
    angle = params["scale"] * t.astype(np.float64)[:, None] * f
    y = [np.sin(angle), np.cos(angle)] if params["sin_first"] else [np.cos(angle), np.sin(angle)]
    y = [np.where(np.arange(len(t))[:, None] % 2, np.cos(angle), np.sin(angle))] * 2 if by_rows else y
    flat = np.stack(y, axis=2).reshape(len(t), -1) if interleaved else np.concatenate(y, axis=1)
    return np.pad(flat, ((0, 0), (0, dim % 2))).astype(np.float32)


def wrong_embedding(**how) -> Wrong:
    def wrong(op, inputs, params):
        return embedded(inputs["t"].values(), params, **how)

    return wrong


def _timesteps(label: str, dim: int, max_period=10000.0, fraction=0) -> Case:
    """Make a case of timesteps in 0..1000, in steps of 2**-fraction."""
    t = Recipe((5,), data="token_ids", n=1000 << fraction, exponent=-fraction)
    return Case(
        f"timestep_embedding/f32/{label}-d{dim}",
        "timestep_embedding",
        {"t": t},
        {"dim": dim, "max_period": max_period},
    )


def _times(label: str, dim: int, exponent=-8, **params) -> Case:
    """Make a case of fractional times in 0..1024 (over the scale)."""
    inputs = {"t": Recipe((4,), data="positive", exponent=exponent)}
    return Case(f"timestep_embedding/f32/{label}-x4-d{dim}", "timestep_embedding", inputs, {"dim": dim, **params})


TIMESTEP_EMBEDDING = Operation(
    "timestep_embedding",
    "Cosines, then sines, of scale * t at geometrically spaced frequencies; a zero at the end if dim is odd.",
    family="positions",
    inputs={"t": "[N]"},
    output="[N, dim]",
    params={"dim": REQUIRED, "max_period": 10000.0, "freq_shift": 0.0, "scale": 1.0, "sin_first": False},
    run=lambda a, inputs, params: a.timestep_embedding(values(a, inputs["t"]), **params),
    fits=lambda shapes, params: params["dim"] // 2 > params["freq_shift"],
    bound=_bound,
    mutants=(
        Mutant("sines and cosines exchanged", other_params(sin_first=lambda first: not first)),
        Mutant("sines and cosines interleaved", wrong_embedding(interleaved=True)),
        Mutant("sines in even rows, cosines in odd rows", wrong_embedding(by_rows=True)),
        Mutant("divided by half - 1", wrong_embedding(last=1)),
        Mutant("t one too small", other_input("t", lambda t: t - 1)),
        Mutant("t one too large", other_input("t", lambda t: t + 1)),
        Mutant("t 1000 times too small", other_input("t", lambda t: t / 1000)),
        Mutant("t rounded to bfloat16", other_input("t", lambda t: t.astype(ml_dtypes.bfloat16).astype(t.dtype))),
        Mutant("t truncated to an integer", other_input("t", np.trunc)),
        Mutant("period 10000 always", other_params(max_period=lambda p: 10000.0)),
        Mutant("scale missing", other_params(scale=lambda s: 1.0)),
        Mutant("frequencies not shifted", other_params(freq_shift=lambda s: 0.0)),
    ),
    cases=(
        _timesteps("unet", 320),
        _timesteps("flux", 256),
        _timesteps("odd", 33),
        _timesteps("fractional", 64, fraction=3),
        _timesteps("period", 132, max_period=1000.0),
        _times("sigma", 20, exponent=-18, scale=1000.0),
        _times("ddpm", 33, freq_shift=1.0, sin_first=True),
    ),
)

OPERATIONS = (TIMESTEP_EMBEDDING,)
