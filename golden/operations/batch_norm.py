"""Normalisation by a given mean and variance."""

import numpy as np

from refsd.golden.bounds import Run
from refsd.golden.case import Case
from refsd.golden.mutations import BATCH, EPS, SIDES_SWAPPED, other_input
from refsd.golden.operation import IMAGE, Mutant, Operation, values
from refsd.golden.recipe import Recipe
from refsd.golden.rounding import Bound, Terms
from refsd.kernels.batch_norm import batch_norm


def _run(a, inputs, params):
    x, mean, var = (values(a, inputs[name]) for name in ("x", "mean", "var"))
    if a.numerics.storage == a.numerics.compute:
        return a.apply(batch_norm, x, mean, var, eps=params["eps"])
    # torch composes it from several operations for a tensor that is not contiguous.
    x, mean, var = (a.settled(t) for t in (x, mean, var))
    r = a.settled(1 / np.sqrt(a.settled(var + a.numerics.compute_dtype.type(params["eps"]))))
    return a.store(a.settled(x - mean[:, None, None]) * r[:, None, None])


def _bound(run: Run) -> Bound:
    """y = (x - m) r, r = (v + eps)^(-1/2), or x r - m r.

    r (dx + dm) + |x - m| r dv / (2 (v + eps)) + 4 u (|x| + |m|) r

    An engine that composes it from several operations stores x - m, v + eps and r.
    """
    x, dx = run.inputs["x"], run.moved("x")
    m, dm, v, dv = (
        t[:, None, None] for t in (run.inputs["mean"], run.moved("mean"), run.inputs["var"], run.moved("var"))
    )
    square = v + run.params["eps"]
    r = 1 / np.sqrt(square)
    dv = dv + np.where(run.between(square) < square, run.between(square + dv), np.inf)  # stored as 0, r is inf
    terms = Terms().add(r * dx).add(r * dm).add(np.abs(x - m) * r * dv / (2 * square))
    terms.add(r * run.between(np.abs(x - m) + dx + dm)).add(np.abs(x - m) * run.between(r * (1 + dv / square)))
    return run.rounded(terms.add(4 * run.u * (np.abs(x) + np.abs(m)) * r))


def by_variance(op, inputs, params):
    """Divide by the variance instead of its root."""
    x, mean, var = (inputs[name].values() for name in ("x", "mean", "var"))
    return (x - mean[:, None, None]) / (var + np.float32(params["eps"]))[:, None, None]


def _case(label: str, x: tuple[int, int, int, int], eps: float, exponent=-17) -> Case:
    channels = x[1:2]
    var = Recipe(channels, data="positive", exponent=exponent)
    inputs = {"x": Recipe(x), "mean": Recipe(channels), "var": var}
    return Case(f"batch_norm/f32/{label}-n{x[0]}-c{x[1]}-h{x[2]}-w{x[3]}", "batch_norm", inputs, {"eps": eps})


BATCH_NORM = Operation(
    "batch_norm",
    "Normalise each channel by a given mean and variance.",
    family="norms",
    inputs={"x": IMAGE, "mean": "[C]", "var": "[C]"},
    output=IMAGE,
    channel=1,
    params={"eps": 1e-5},
    run=_run,
    bound=_bound,
    mutants=(
        *EPS,
        Mutant("divided by the variance", by_variance),
        Mutant("mean missing", other_input("mean", np.zeros_like)),
        Mutant("variance of the channel before", other_input("var", lambda v: np.roll(v, 1))),
        SIDES_SWAPPED,
        BATCH,
    ),
    cases=(
        _case("flux2", (2, 128, 3, 5), 1e-4),
        _case("still", (2, 33, 4, 7), 1e-4, exponent=-30),
        _case("small-eps", (2, 5, 4, 3), 1e-5, exponent=-30),
    ),
)

OPERATIONS = (BATCH_NORM,)
