"""Attention whose scores are bent to stay within a limit, as Gemma 2's."""

import numpy as np

from refsd.kernels.softmax import softmax_sinks
from refsd.kernels.tanh import tanh


def attention_softcap(q, k, v, scale, cap, mask=None):
    """Mix the values by how well their keys match each query, no score above `cap`.

        s[l, j] = cap tanh(scale q[l] . k[j] / cap)
        y[l]    = sum_j softmax_j(s[l, j] + mask[l, j]) v[j]

    q:     [B, L, H, D]
    k:     [B, J, G, D], G a divisor of H: query head h reads head h // (H/G) of k and v
    v:     [B, J, G, E]
    cap:   the limit, a float
    mask:  broadcastable to [B, H, L, J], added to the capped scores; -inf masks. None masks nothing.
    -> y:  [B, L, H, E], dtype of q

    A query that sees no key gives zeros. Products accumulate in the dtype of q, in BLAS's order.
    Source: Gemma Team 2024, Gemma 2, section 2, logit soft-capping; transformers modeling_gemma2.py.
    """
    B, L, H, _ = q.shape
    J, G = k.shape[1:3]
    if mask is not None:
        mask = np.broadcast_to(mask, (B, H, L, J))
    no_sink = np.full(1, -np.inf, q.dtype)
    y = np.empty((B, L, H, v.shape[3]), q.dtype)
    for b, h in np.ndindex(B, H):
        g = h // (H // G)
        scores = np.matmul(q[b, :, h], k[b, :, g].T)
        scores *= scale / cap
        scores = tanh(scores)
        scores *= cap
        if mask is not None:
            scores += mask[b, h]
        y[b, :, h] = np.matmul(softmax_sinks(scores, no_sink), v[b, :, g])
    return y
