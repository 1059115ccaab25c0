"""Bounds of softmax and attention."""

import math
from collections.abc import Callable

import numpy as np

from refsd.golden.bounds.run import FUNCTION, Run, products
from refsd.golden.numerics import DTYPES
from refsd.golden.rounding import Bound, Terms, gamma, moved_by_type, unit
from refsd.kernels.attention import causal_mask


def _softmax_terms(u: float, scores, ds, ss) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """p, and the relative error of p as limit and spread.

    p_j = exp(s_j - m) / sum exp: a change ds moves log p_j by ds_j - sum p ds; s - m rounds by u |s - m|;
    exp, the sum of L terms and the quotient add 4 u + gamma(L).
    """
    peak = scores.max(axis=-1, keepdims=True)
    below = np.where(np.isneginf(scores), 0.0, peak - scores)
    e = np.exp(-below) * ~np.isneginf(scores)
    total = e.sum(axis=-1, keepdims=True)
    p = e / np.where(total > 0, total, 1.0)  # a row masked throughout gives zeros
    n = scores.shape[-1]
    each = np.where(np.isneginf(scores), 0.0, ds) + u * below
    spread = np.where(np.isneginf(scores), 0.0, ss) + u * below / math.sqrt(3)
    limit = each + (p * each).sum(axis=-1, keepdims=True) + 2 * FUNCTION * u + gamma(n, u)
    spread = np.hypot(spread, np.sqrt((p**2 * spread**2).sum(axis=-1, keepdims=True))) + (2 + math.sqrt(n / 3)) * u
    return p, np.expm1(np.minimum(limit, 700)), spread


def _softmax(run: Run) -> Bound:
    """_softmax_terms of scale x + mask, the sink a last column."""
    x, dx, scale = run.inputs["x"], run.moved("x"), run.params["scale"]
    mask, dmask = (run.inputs["mask"], run.moved("mask")) if "mask" in run.inputs else (0.0, 0.0)
    scores = scale * x + mask
    finite = np.where(np.isneginf(scores), 0.0, np.abs(scores))
    ds = abs(scale) * dx + dmask + run.u * (2 * np.abs(scale * x) + finite)
    L = x.shape[-1]
    scores, ds = _with_sinks(run, scores, ds)
    p, limit, spread = (t[..., :L] for t in _softmax_terms(run.u, scores, ds, ds / math.sqrt(3)))
    return run.rounded(Terms().add(p * limit, p * spread))


def _with_sinks(run: Run, scores, *errors):
    """Scores [B, H, L, J] and their errors with the sink and what storing it moves as column J."""
    if "sinks" not in run.inputs:
        return scores, *errors
    column = (*scores.shape[:-1], 1)
    sinks, moved = (np.broadcast_to(t[:, None, None], column) for t in (run.inputs["sinks"], run.moved("sinks")))
    return tuple(np.concatenate(pair, axis=-1) for pair in ((scores, sinks), *((e, moved) for e in errors)))


def _attention(run: Run) -> Bound:
    """y = p v: sum p rho |v| with rho the relative error of p, p dv, and the sum over J keys.

    s = scale q.k + mask: scale (|q| dk + dq |k| + gamma(D) |q||k|). Fused attention in float16 rounds q, k, v and
    the mask, and may sum p v in float16; an engine that stores float16 or bfloat16 may round s and p to it.
    Keys and values are repeated for each head of their group; a sink is one more key, whose value is zero.
    """
    flash = run.numerics.flash
    q, k, v = (run.inputs[name].transpose(0, 2, 1, 3) for name in ("q", "k", "v"))
    dq, dk, dv = (run.moved(name, flash).transpose(0, 2, 1, 3) for name in ("q", "k", "v"))
    k, v, dk, dv = (np.repeat(t, q.shape[1] // t.shape[1], axis=1) for t in (k, v, dk, dv))
    scale = run.params["scale"] or q.shape[-1] ** -0.5
    u, u_store = run.u, unit(run.numerics.storage_dtype)
    mask, dmask = 0.0, 0.0
    if "mask" in run.inputs:
        mask, dmask = run.inputs["mask"], moved_by_type(run.inputs["mask"], flash)
    if run.params["causal"]:
        mask = mask + causal_mask(q.shape[2], np.float64, k.shape[2], run.params["diagonal"])

    def dot(a, b):
        return a @ b.swapaxes(-1, -2)

    scores = scale * dot(q, k) + mask
    finite = np.where(np.isneginf(scores), 0.0, np.abs(scores))
    absolute, squares = dot(np.abs(q) + dq, np.abs(k) + dk), dot((np.abs(q) + dq) ** 2, (np.abs(k) + dk) ** 2)
    terms = Terms().add(
        scale * (dot(dq, np.abs(k)) + dot(np.abs(q) + dq, dk)),
        scale * np.sqrt((dot(dq**2, k**2) + dot(q**2, dk**2)) / 3),
    )
    limit, spread = products(u, q.shape[-1], absolute, squares, dot(q, k))
    terms.add(abs(scale) * limit, abs(scale) * spread).add(dmask).add(3 * u * finite)
    if u_store > u:
        terms.add(u_store * finite)
    J = scores.shape[-1]
    p, rho, rho_spread = (
        t[..., :J] for t in _softmax_terms(u, *_with_sinks(run, scores, terms.limit, np.sqrt(terms.square)))
    )
    half_sum = flash is not None and run.numerics.flash_sum == "f16"
    u_p = max(u, unit(DTYPES["float16"])) if half_sum else max(u, u_store)
    w, pv = np.abs(v) + dv, p @ (np.abs(v) + dv)
    total = Terms().add((p * rho) @ w, np.sqrt((p * rho_spread) ** 2 @ w**2)).add(p @ dv, np.sqrt(p**2 @ dv**2 / 3))
    total.add(u_p * pv)
    truth = run.truth.transpose(0, 2, 1, 3)
    # In float16 the running sum is rounded again whenever a new peak rescales it.
    u_sum, roundings = (unit(DTYPES["float16"]), 2) if half_sum else (u, 1)
    total.add(*products(u_sum, roundings * p.shape[-1], pv, p**2 @ w**2, truth))
    total.limit, total.square = total.limit.transpose(0, 2, 1, 3), total.square.transpose(0, 2, 1, 3)
    return run.rounded(total)


BOUNDS: dict[str, Callable[[Run], Bound]] = {
    "softmax": _softmax,
    "attention": _attention,
}
