"""Attention as one contraction over all heads, keys and values copied to each, its softmax unshifted."""

import numpy as np


def attention(q, k, v, scale, mask=None, diagonal=None, sinks=None):
    copies = q.shape[2] // k.shape[2]
    k, v = np.repeat(k, copies, axis=2), np.repeat(v, copies, axis=2)
    scores = np.einsum("blhd,bjhd->bhlj", q, k) * scale + (0.0 if mask is None else mask)
    if diagonal is not None:
        hidden = ~np.tri(q.shape[1], k.shape[1], diagonal, bool)
        scores = np.where(hidden, -np.inf, scores)
    weights = np.exp(scores)
    total = weights.sum(-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sinks)[:, None, None]
    weights = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
    return np.einsum("bhlj,bjhe->blhe", weights, v)
