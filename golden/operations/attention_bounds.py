"""Bound attention: its scores, the softmax of them, and the sum of the values."""

import numpy as np

from refsd.golden.bounds import FUNCTION, Run, products, sums
from refsd.golden.operations.softmax import softmax_terms, with_sinks
from refsd.golden.rounding import Bound, Terms, gamma, largest, unit, unit_of_type
from refsd.kernels.attention import causal_mask
from refsd.kernels.quant.activation_codes import GRIDS
from refsd.numerics.profiles import DTYPES


def attention_bound(run: Run, cap: float | None = None) -> Bound:
    """y = p v: sum p rho |v|, rho the relative error of p; p dv; and the sum over J keys.

    s = scale q.k + mask: scale (|q| dk + dq |k| + gamma(D) |q||k|). Fused attention in float16 rounds q, k, v and
    the mask, and may sum p v in float16; an engine that stores float16 or bfloat16 may round s and p to it.
    Keys and values are repeated for each head of their group; a sink is one more key, whose value is zero.

    Scores in int8: q and k are half a step of their block's codes off, keys with their mean subtracted, which moves
    all scores of a query alike; products of codes are exact.

    cap: s = cap tanh(scale q.k / cap) + mask: the slope of tanh is at most 1, and an engine that composes it rounds
         the quotient, tanh and the product, each by a share of s
    """
    bare = cap is None and not {"mask", "sinks"} & run.inputs.keys() and not run.params.get("causal")
    run = run._replace(numerics=run.numerics.attending(run.inputs["q"].shape[-1], bare))
    flash, codes = run.numerics.flash, run.numerics.scores
    q, k, v = (run.inputs[name].transpose(0, 2, 1, 3) for name in ("q", "k", "v"))
    through = flash or run.numerics.products
    dq, dk, dv = (run.moved(name, through).transpose(0, 2, 1, 3) for name in ("q", "k", "v"))
    if codes is not None:
        dv = run.moved("v", "f16").transpose(0, 2, 1, 3)
        if codes.smooth:
            k, dk = smoothed_keys(run, k, dk)
        dq, dk = dq + half_steps(q, dq, codes.query_block, run.u), dk + half_steps(k, dk, codes.key_block, run.u)
    k, v, dk, dv = (np.repeat(t, q.shape[1] // t.shape[1], axis=1) for t in (k, v, dk, dv))
    scale = run.params["scale"] or q.shape[-1] ** -0.5
    u, u_store = run.u, unit(run.numerics.storage_dtype)
    mask, dmask = 0.0, 0.0
    if "mask" in run.inputs:
        mask, dmask = run.inputs["mask"], run.moved("mask", flash)
    if run.params.get("causal"):
        mask = mask + causal_mask(q.shape[2], np.float64, k.shape[2], run.params["diagonal"])

    def dot(a, b):
        return a @ b.swapaxes(-1, -2)

    plain = scale * dot(q, k)
    bent = plain if cap is None else cap * np.tanh(plain / cap)
    scores = bent + mask
    finite = np.where(np.isneginf(scores), 0.0, np.abs(scores))
    absolute, squares = dot(np.abs(q) + dq, np.abs(k) + dk), dot((np.abs(q) + dq) ** 2, (np.abs(k) + dk) ** 2)
    terms = Terms().add(
        scale * (dot(dq, np.abs(k)) + dot(np.abs(q) + dq, dk)),
        scale * np.sqrt((dot(dq**2, k**2) + dot(q**2, dk**2)) / 3),
    )
    if codes is None:
        limit, spread = sums(run, "attention", q.shape[-1], absolute, squares, dot(q, k))
        terms.add(abs(scale) * limit, abs(scale) * spread)
    if cap is not None:
        terms.square = terms.square * (1 - (bent / cap) ** 2) ** 2
        terms.add((FUNCTION + 4) * max(u, u_store) * np.abs(bent))
    terms.add(dmask).add(3 * u * finite)
    if u_store > u:
        terms.add(u_store * finite)
    return mixed_bound(run, scores, terms, v, dv)


def smoothed_keys(run: Run, k, dk) -> tuple[np.ndarray, np.ndarray]:
    """Subtract the keys' mean: its sum and the difference are rounded, and both may be stored. [B, G, J, D]"""
    u, mean = run.u, np.abs(k).mean(axis=2, keepdims=True)
    dk = dk + dk.mean(axis=2, keepdims=True) + gamma(k.shape[2] + 1, u) * mean + run.between(mean)
    k = k - k.mean(axis=2, keepdims=True)
    dk = dk + u * np.abs(k)
    return k, dk + run.between(np.abs(k) + dk)


def half_steps(x, dx, block: int, u: float) -> np.ndarray:
    """Bound what int8 rounds off, under a scale for each head and block of tokens. [B, H, L, D] -> [B, H, L, 1]

    The scale, the quotient and the product of both are rounded.
    """
    starts = range(0, x.shape[2], block)
    most = np.maximum.reduceat((np.abs(x) + dx).max(axis=3, keepdims=True), starts, axis=2)
    codes = GRIDS["int8"].largest
    return np.repeat(most, block, axis=2)[:, :, : x.shape[2]] * (0.5 / codes + 3 * u)


def mixed_bound(run: Run, scores, terms: Terms, v, dv) -> Bound:
    """Bound y = softmax(scores, sinks) v: sum p rho |v|, rho the relative error of p; p dv; the sum over J keys.

    scores: [B, H, L, J], and terms their error; v: [B, H, J, E], and dv its error
    """
    flash, u, u_store = run.numerics.flash, run.u, unit(run.numerics.storage_dtype)
    J = scores.shape[-1]
    p, rho, rho_spread = (
        t[..., :J] for t in softmax_terms(u, *with_sinks(run, scores, terms.limit, np.sqrt(terms.square)))
    )
    half_sum = flash is not None and run.numerics.flash_sum == "f16"
    u_p = max(u, unit(DTYPES["float16"])) if half_sum else max(u, u_store)
    w, pv = np.abs(v) + dv, p @ (np.abs(v) + dv)
    total = Terms().add((p * rho) @ w, np.sqrt((p * rho_spread) ** 2 @ w**2)).add(p @ dv, np.sqrt(p**2 @ dv**2 / 3))
    products_of = "f16" if run.numerics.scores is not None else run.numerics.products
    if products_of is not None:
        u_p = max(u_p, unit_of_type(products_of))
    total.add(u_p * pv)
    truth = run.truth.transpose(0, 2, 1, 3)
    if half_sum:
        # The running sum of exp(s - the peak so far) v is rounded again whenever a new peak rescales it, and
        # may leave float16's range.
        total.add(*products(unit(DTYPES["float16"]), 2 * J, pv, p**2 @ w**2, truth))
        total.add(np.where((p > 0) @ w > largest(DTYPES["float16"]), np.inf, 0.0))
    else:
        total.add(*sums(run, "attention", J, pv, p**2 @ w**2, truth))
    total.limit, total.square = total.limit.transpose(0, 2, 1, 3), total.square.transpose(0, 2, 1, 3)
    return run.rounded(total)
