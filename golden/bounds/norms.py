"""Bounds of normalisations."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from refsd.golden.bounds.run import Run
from refsd.golden.rounding import Bound, Terms, gamma


class _Affine(NamedTuple):
    """A norm's weight and bias, and what storing them moves; each broadcasts to its rows."""

    weight: np.ndarray
    dw: np.ndarray
    bias: np.ndarray
    db: np.ndarray


def _norm_axis(run: Run, x, dx, affine: _Affine, centred: bool) -> Terms:
    """Rows [..., n] normalised over the last axis.

    y = (x - m) r w + b, r = (v + eps)^(-1/2). With c = x - m:
    dm <= gamma(n) E|x| + E[dx] + u |m|;  dv <= 2 sqrt(v) rms(dx + dm) + rms(dx + dm)^2 + gamma(n) v
    dr / r <= dv / (2 (v + eps)), and dy <= |w| r (dx + dm + |c| dr/r + 4u |c|) + |c| r dw + db + u |b|
    """
    n, u, eps = x.shape[-1], run.u, run.params["eps"]
    weight, dw, b, db = affine

    def mean(t):
        return t.mean(axis=-1, keepdims=True)

    m = mean(x) if centred else np.zeros_like(x[..., :1])
    c = x - m
    v = mean(c**2)
    r = 1 / np.sqrt(v + eps)
    dm = gamma(n, u) * mean(np.abs(x)) + mean(dx) + u * np.abs(m) if centred else 0.0
    sm = np.sqrt(n / 3 * mean(x**2)) * u + np.sqrt(mean(dx**2) / 3 / n) + u * np.abs(m) if centred else 0.0
    shift = np.sqrt(mean(dx**2)) + dm
    dv = 2 * np.sqrt(v) * shift + shift**2 + gamma(n + 3, u) * v
    # A shift of the mean leaves the variance alone to first order.
    sv = 2 * np.sqrt(v * mean(dx**2) / 3 / n) + np.sqrt(n / 3) * u * v + 3 * u * v + sm**2
    terms = Terms().add(np.abs(weight) * r * dx)
    terms.add(np.abs(weight) * r * dm, np.abs(weight) * r * sm)
    terms.add(np.abs(weight * c) * r * dv / (2 * (v + eps)), np.abs(weight * c) * r * sv / (2 * (v + eps)))
    terms.add(4 * u * np.abs(weight * c) * r, 2 * u * np.abs(weight * c) * r)
    return terms.add(np.abs(c) * r * dw).add(db).add(u * np.abs(b))


def _group_norm(run: Run) -> Bound:
    """_norm_axis over a group's channels and pixels."""
    x = run.inputs["x"]
    N, C, H, W = x.shape
    G = run.params["num_groups"]
    rows = (N, G, C // G * H * W)

    def per_channel(t):
        return np.broadcast_to(t[None, :, None, None], x.shape).reshape(rows)

    w, dw = run.inputs["weight"], run.moved("weight")
    b, db = run.inputs["bias"], run.moved("bias")
    affine = _Affine(per_channel(w), per_channel(dw), per_channel(b), per_channel(db))
    terms = _norm_axis(run, x.reshape(rows), run.moved("x").reshape(rows), affine, True)
    terms.limit, terms.square = terms.limit.reshape(x.shape), terms.square.reshape(x.shape)
    return run.rounded(terms)


def _row_norm(run: Run, centred: bool) -> Bound:
    x = run.inputs["x"]
    w, dw = (run.inputs["weight"], run.moved("weight")) if "weight" in run.inputs else (np.ones(1), np.zeros(1))
    b, db = (run.inputs["bias"], run.moved("bias")) if "bias" in run.inputs else (np.zeros(1), np.zeros(1))
    return run.rounded(_norm_axis(run, x, run.moved("x"), _Affine(w, dw, b, db), centred))


BOUNDS: dict[str, Callable[[Run], Bound]] = {
    "group_norm": _group_norm,
    "layer_norm": lambda run: _row_norm(run, True),
    "rms_norm": lambda run: _row_norm(run, False),
}
