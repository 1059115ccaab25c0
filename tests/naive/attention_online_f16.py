"""Online softmax with a float16 running sum, one query at a time, in NumPy's own float16."""

import numpy as np


def attention_online_f16(q, k, v, scale, mask, sinks):
    """q [B, L, H, D], k [B, J, G, D], v [B, J, G, E], mask [B, H, L, J], sinks [H] -> [B, L, H, E]"""
    B, L, H, _ = q.shape
    E = v.shape[3]
    k, v = (np.repeat(t, H // t.shape[2], axis=2) for t in (k, v))
    y = np.zeros((B, L, H, E))
    for b, l, h in np.ndindex(B, L, H):
        scores = scale * np.einsum("d,jd->j", q[b, l, h], k[b, :, h]) + mask[b, h, l]
        total, weights, highest = np.zeros(E, np.float16), 0.0, -np.inf
        for j in np.flatnonzero(np.isfinite(scores)):
            new = max(highest, scores[j])
            if new > highest:
                total = (total * np.exp(highest - new)).astype(np.float16)
                weights *= np.exp(highest - new)
            highest = new
            total = (total + v[b, j, h] * np.exp(scores[j] - new)).astype(np.float16)
            weights += np.exp(scores[j] - new)
        if weights + np.exp(sinks[h]) > 0:
            y[b, l, h] = total / (weights + np.exp(sinks[h] - highest)) if weights else 0
    return y
