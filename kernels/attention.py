"""Attention in three passes: scores, softmax, weighted sum of the values."""

import numpy as np

from refsd.kernels.softmax import softmax


def attention(q, k, v, scale, mask=None):
    """Mix the values by how well their keys match each query.

        y[l] = sum_j softmax_j(scale q[l] . k[j] + mask[l, j]) v[j]

    q:    [B, L, H, D]
    k, v: [B, J, H, D]
    mask: broadcastable to [B, H, L, J], added to the scores; -inf masks. None masks nothing.
    -> y: [B, L, H, D], dtype of q; a query that sees no key gives zeros

    One head's scores [L, J] are held at a time. Products accumulate in the dtype of q, the
    softmax's sum in float64.
    Source: Vaswani et al. 2017, eq. 1; torch.nn.functional.scaled_dot_product_attention.
    """
    B, L, H, _ = q.shape
    J = k.shape[1]
    if mask is not None:
        mask = np.broadcast_to(mask, (B, H, L, J))
    y = np.empty((B, L, H, v.shape[3]), q.dtype)
    for b in range(B):
        for h in range(H):
            scores = np.matmul(q[b, :, h], k[b, :, h].T)
            scores *= scale
            if mask is not None:
                scores += mask[b, h]
            y[b, :, h] = np.matmul(softmax(scores), v[b, :, h])
    return y


def causal_mask(L, dtype):
    """The mask that hides the future: 0 where j <= l, -inf above. -> [L, L]"""
    return np.triu(np.full((L, L), -np.inf, dtype), 1)
