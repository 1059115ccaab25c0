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
    p = e / e.sum(axis=-1, keepdims=True)
    n = scores.shape[-1]
    each = np.where(np.isneginf(scores), 0.0, ds) + u * below
    spread = np.where(np.isneginf(scores), 0.0, ss) + u * below / math.sqrt(3)
    limit = each + (p * each).sum(axis=-1, keepdims=True) + 2 * FUNCTION * u + gamma(n, u)
    spread = np.hypot(spread, np.sqrt((p**2 * spread**2).sum(axis=-1, keepdims=True))) + (2 + math.sqrt(n / 3)) * u
    return p, np.expm1(np.minimum(limit, 700)), spread


def _softmax(run: Run) -> Bound:
    """_softmax_terms of scale x + mask."""
    x, dx, scale = run.inputs["x"], run.moved("x"), run.params["scale"]
    mask, dmask = (run.inputs["mask"], run.moved("mask")) if "mask" in run.inputs else (0.0, 0.0)
    scores = scale * x + mask
    ds = abs(scale) * dx + dmask + run.u * (2 * np.abs(scale * x) + np.abs(scores))
    p, limit, spread = _softmax_terms(run.u, scores, ds, ds / math.sqrt(3))
    return run.rounded(Terms().add(p * limit, p * spread))


def _attention(run: Run) -> Bound:
    """y = p v: sum p rho |v| with rho the relative error of p, p dv, and the sum over J keys.

    s = scale q.k + mask: scale (|q| dk + dq |k| + gamma(D) |q||k|). Fused attention in float16 rounds q, k, v and
    the mask, and may sum p v in float16; an engine that stores float16 or bfloat16 may round s and p to it.
    """
    flash = run.numerics.flash
    q, k, v = (run.inputs[name].transpose(0, 2, 1, 3) for name in ("q", "k", "v"))
    dq, dk, dv = (run.moved(name, flash).transpose(0, 2, 1, 3) for name in ("q", "k", "v"))
    scale = run.params["scale"] or q.shape[-1] ** -0.5
    u, u_store = run.u, unit(run.numerics.storage_dtype)
    mask, dmask = 0.0, 0.0
    if "mask" in run.inputs:
        mask, dmask = run.inputs["mask"], moved_by_type(run.inputs["mask"], flash)
    if run.params["causal"]:
        mask = causal_mask(q.shape[2], np.dtype(np.float64))

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
    p, rho, rho_spread = _softmax_terms(u, scores, terms.limit, np.sqrt(terms.square))
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
