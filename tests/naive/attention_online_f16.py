"""Online softmax with a float16 running sum, one query at a time, in NumPy's own float16."""

import numpy as np


def attention_online_f16(q, k, v, scale, mask):
    """q [B, L, H, D], k and v [B, J, H, D], mask [B, H, L, J] -> [B, L, H, D]"""
    B, L, H, D = q.shape
    y = np.zeros((B, L, H, D))
    for b, l, h in np.ndindex(B, L, H):
        scores = scale * np.einsum("d,jd->j", q[b, l, h], k[b, :, h]) + mask[b, h, l]
        total, weights, highest = np.zeros(D, np.float16), 0.0, -np.inf
        for j in np.flatnonzero(np.isfinite(scores)):
            new = max(highest, scores[j])
            if new > highest:
                total = (total * np.exp(highest - new)).astype(np.float16)
                weights *= np.exp(highest - new)
            highest = new
            total = (total + v[b, j, h] * np.exp(scores[j] - new)).astype(np.float16)
            weights += np.exp(scores[j] - new)
        if weights:
            y[b, l, h] = total / weights
    return y
