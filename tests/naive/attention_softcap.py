"""Soft-capped attention as one contraction over all heads, the limit by exponentials."""

import numpy as np


def attention_softcap(q, k, v, scale, cap, mask=None):
    copies = q.shape[2] // k.shape[2]
    k, v = np.repeat(k, copies, axis=2), np.repeat(v, copies, axis=2)
    twice = np.exp(2 * np.einsum("blhd,bjhd->bhlj", q, k) * scale / cap)
    weights = np.exp(cap * (twice - 1) / (twice + 1) + (0.0 if mask is None else mask))
    total = weights.sum(-1, keepdims=True)
    weights = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
    return np.einsum("bhlj,bjhe->blhe", weights, v)
