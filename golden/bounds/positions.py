"""Bounds of embeddings of position and time."""

from collections.abc import Callable

import numpy as np

from refsd.golden.bounds.run import FUNCTION, Run
from refsd.golden.rounding import Bound, Terms


def _timestep_embedding(run: Run) -> Bound:
    """cos(t f), f = exp(-ln(P) j / half): f has 2 u ln(P) j / half + 4 u, the angle t f one rounding more."""
    t, dt = run.inputs["t"][:, None], run.moved("t")[:, None]
    half = run.params["dim"] // 2
    ratio = np.log(run.params["max_period"]) * np.arange(half) / max(half, 1)
    f = np.exp(-ratio)
    angle = np.abs(t) * f * run.u * (2 * ratio + FUNCTION + 1) + dt * f
    limit = np.minimum(angle, 2.0) + FUNCTION * run.u
    zero = np.zeros((t.shape[0], run.params["dim"] % 2))
    limit = np.concatenate([limit, limit, zero], axis=1)
    return run.rounded(Terms().add(limit, limit / FUNCTION))


BOUNDS: dict[str, Callable[[Run], Bound]] = {
    "timestep_embedding": _timestep_embedding,
}
