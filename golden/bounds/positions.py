"""Bounds of embeddings of position and time."""

from collections.abc import Callable

import numpy as np

from refsd.golden.bounds.run import FUNCTION, Run
from refsd.golden.rounding import Bound, Terms


def _timestep_embedding(run: Run) -> Bound:
    """cos(s t f), f = exp(-ln(P) j / (half - shift)): 2 u ln(P) j / half + 4 u, the angle two more."""
    t, dt = run.inputs["t"][:, None], run.moved("t")[:, None]
    half, scale = run.params["dim"] // 2, abs(run.params["scale"])
    ratio = np.log(run.params["max_period"]) * np.arange(half) / max(half - run.params["freq_shift"], 1)
    f = np.exp(-ratio)
    angle = scale * (np.abs(t) * f * run.u * (2 * ratio + FUNCTION + 2) + dt * f)
    limit = np.minimum(angle, 2.0) + FUNCTION * run.u
    zero = np.zeros((t.shape[0], run.params["dim"] % 2))
    limit = np.concatenate([limit, limit, zero], axis=1)
    return run.rounded(Terms().add(limit, limit / FUNCTION))


def _rope(run: Run) -> Bound:
    """y = c a - s b, c and s of p f, f = theta^(-2i/d).

    f by powf or exp has 2 u ln(theta) 2i/d + 4 u, by repeated multiplication 2 i u more; |dy| <= |c| da + |s| db +
    (p df + 4 u)(|a| + |b|) + 2 u (|a| + |b|)
    """
    x, dx = run.inputs["x"], run.moved("x")
    p = np.abs(run.inputs["ids"])
    off = []
    for axis, dim in enumerate(run.params["axes_dim"]):
        i = np.arange(dim // 2)
        ratio = np.log(run.params["theta"]) * 2 * i / dim
        off.append(p[..., axis, None] * np.exp(-ratio) * run.u * (2 * ratio + 2 * i + FUNCTION + 2))
    off = np.minimum(np.concatenate(off, axis=-1), 2.0)[:, :, None] + (FUNCTION + 2) * run.u
    pairs = _halves if run.params["halves"] else _neighbours
    limit = [off * sum(np.abs(t) for t in pairs(x)) + sum(pairs(dx))] * 2
    together = np.concatenate(limit, axis=-1) if run.params["halves"] else np.stack(limit, axis=-1).reshape(x.shape)
    return run.rounded(Terms().add(together, together / FUNCTION))


def _neighbours(x):
    return x[..., 0::2], x[..., 1::2]


def _halves(x):
    return np.split(x, 2, axis=-1)


def _sincos_positions(run: Run) -> Bound:
    """sin(p f), f = 10000^(-i / quarter), as timestep_embedding's"""
    quarter = run.params["dim"] // 4
    ratio = np.log(10000) * np.arange(quarter) / quarter
    rows, columns = (
        np.exp(-ratio) * (np.abs(p) * run.u * (2 * ratio + FUNCTION + 1) + dp)
        for p, dp in ((run.inputs[name][:, None], run.moved(name)[:, None]) for name in ("rows", "columns"))
    )
    shape = (len(rows), len(columns), quarter)
    angle = [np.broadcast_to(t, shape) for t in (columns[None], columns[None], rows[:, None], rows[:, None])]
    limit = np.minimum(np.concatenate(angle, axis=-1), 2.0) + FUNCTION * run.u
    limit = limit.reshape(run.truth.shape)
    return run.rounded(Terms().add(limit, limit / FUNCTION))


BOUNDS: dict[str, Callable[[Run], Bound]] = {
    "timestep_embedding": _timestep_embedding,
    "rope": _rope,
    "sincos_positions": _sincos_positions,
}
