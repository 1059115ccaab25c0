"""Bounds of normalisations."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from refsd.golden.bounds.run import FUNCTION, Run
from refsd.golden.rounding import Bound, Terms, gamma, unit


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


def _group_norm_silu(run: Run) -> Bound:
    """|silu'| <= 1.1 times what the normalised z loses, its rounding between the two included; then SiLU's own."""
    x, G, eps = run.inputs["x"], run.params["num_groups"], run.params["eps"]
    rows = x.reshape(x.shape[0], G, -1)
    mean = rows.mean(axis=2, keepdims=True)
    z = ((rows - mean) / np.sqrt(rows.var(axis=2, keepdims=True) + eps)).reshape(x.shape)
    z = z * run.inputs["weight"][:, None, None] + run.inputs["bias"][:, None, None]
    inner = _group_norm(run._replace(truth=z))
    terms = Terms().add(1.1 * inner.limit, 1.1 * inner.spread)
    noise = run.u * (FUNCTION + 2 + 2 * np.abs(z)) * np.abs(run.truth)
    return run.rounded(terms.add(noise, noise / FUNCTION))


def _l2_norm(run: Run) -> Bound:
    """y = x / m, m = max(|x|, eps): dx / m + |y| dm / m + 2 u |y|, dm <= |dx| + (gamma(n + 1) / 2 + u) |x|"""
    x, dx = run.inputs["x"], run.moved("x")
    length = np.linalg.norm(x, axis=-1, keepdims=True)
    m = np.maximum(length, run.params["eps"])
    y = np.abs(run.truth)
    dm = np.linalg.norm(dx, axis=-1, keepdims=True) + (gamma(x.shape[-1] + 1, run.u) / 2 + run.u) * length
    return run.rounded(Terms().add(dx / m).add(y * dm / m).add(2 * run.u * y))


def _batch_norm(run: Run) -> Bound:
    """y = (x - m) r, r = (v + eps)^(-1/2), or x r - m r.

    r (dx + dm) + |x - m| r dv / (2 (v + eps)) + 4 u (|x| + |m|) r
    """
    x, dx = run.inputs["x"], run.moved("x")
    m, dm, v, dv = (
        t[:, None, None] for t in (run.inputs["mean"], run.moved("mean"), run.inputs["var"], run.moved("var"))
    )
    square = v + run.params["eps"]
    r = 1 / np.sqrt(square)
    terms = Terms().add(r * dx).add(r * dm).add(np.abs(x - m) * r * dv / (2 * square))
    return run.rounded(terms.add(4 * run.u * (np.abs(x) + np.abs(m)) * r))


def _per_item(run: Run, name: str):
    """An item's [N, D] and what storing it moves, for every token."""
    return np.abs(run.inputs[name])[:, None], run.moved(name)[:, None]


def _modulate(run: Run) -> Bound:
    """y = x (1 + s) + b, or x + x s + b: |1 + s| dx + |x| ds + db, and 2 u of each term"""
    x, dx = np.abs(run.inputs["x"]), run.moved("x")
    (s, ds), (b, db) = _per_item(run, "scale"), _per_item(run, "shift")
    terms = Terms().add((1 + s) * dx).add(x * ds).add(db)
    return run.rounded(terms.add(2 * run.u * (x * (1 + s) + b)))


def _adaptive_layer_norm(run: Run) -> Bound:
    """_norm_axis with 1 + scale for its weight and shift for its bias; an engine may round between the two."""
    x, scale = run.inputs["x"], run.inputs["scale"][:, None]
    (_, ds), (b, db) = _per_item(run, "scale"), _per_item(run, "shift")
    affine = _Affine(1 + scale, ds + run.u * np.abs(1 + scale), run.inputs["shift"][:, None], db)
    terms = _norm_axis(run, x, run.moved("x"), affine, True)
    between = unit(run.numerics.storage_dtype) * (1 + np.abs(scale)) * np.abs(x - x.mean(axis=-1, keepdims=True))
    terms.add(between / np.sqrt(x.var(axis=-1, keepdims=True) + run.params["eps"]))
    return run.rounded(terms.add(run.u * b))


def _gated_add(run: Run) -> Bound:
    """y = x + g h: dx + |g| dh + |h| dg, and u of the product and the sum"""
    x, h = np.abs(run.inputs["x"]), np.abs(run.inputs["h"])
    g, dg = _per_item(run, "gate")
    terms = Terms().add(run.moved("x")).add(g * run.moved("h")).add(h * dg)
    return run.rounded(terms.add(2 * run.u * (x + g * h)))


BOUNDS: dict[str, Callable[[Run], Bound]] = {
    "group_norm": _group_norm,
    "layer_norm": lambda run: _row_norm(run, True),
    "rms_norm": lambda run: _row_norm(run, False),
    "l2_norm": _l2_norm,
    "batch_norm": _batch_norm,
    "group_norm_silu": _group_norm_silu,
    "modulate": _modulate,
    "adaptive_layer_norm": _adaptive_layer_norm,
    "gated_add": _gated_add,
}
