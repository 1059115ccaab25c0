"""Attention in three passes: scores, softmax, weighted sum of the values."""

import numpy as np

from refsd.kernels.softmax import softmax_sinks

_SCORES = 1 << 24  # greatest number of scores in memory


def attention(q, k, v, scale, mask=None, diagonal=None, sinks=None, matmul=np.matmul):
    """Mix the values by how well their keys match each query.

        y[l] = sum_j softmax_j(scale q[l] . k[j] + mask[l, j]) v[j]

    q:        [B, L, H, D]
    k:        [B, J, G, D], G a divisor of H: query head h reads head h // (H/G) of k and v, so that
              G = H is plain, G = 1 multi-query, anything between grouped-query attention
    v:        [B, J, G, E]
    mask:     broadcastable to [B, H, L, J], added to the scores; -inf masks. None masks nothing.
    diagonal: causal: query l sees the keys j <= l + diagonal. 0 aligns the first query with the first key
              (top-left: torch's is_causal), J - L the last with the last (bottom-right: torch's
              causal_lower_right, flash attention 2.1, a cache of keys). None is not causal.
    sinks:    [H], an additional score for each head, which takes its share of the softmax but has no value vector
    matmul:   np.matmul or another with its arguments: then products accumulate as it does them
    -> y:     [B, L, H, E], dtype of q

    A query that sees no key gives zeros, as in torch's scaled_dot_product_attention and ggml_flash_attn_ext; a
    separate softmax (torch.softmax, ggml_soft_max) gives NaN.

    Queries are processed in blocks, so that at most 2^24 scores are in memory. Products accumulate in the
    dtype of q, in BLAS's order, the softmax's sum in the dtype of q.
    Source: Vaswani et al. 2017, eq. 1; Ainslie et al. 2023, GQA, section 2.2; sinks: gpt-oss and softmax_sinks.
    """
    B, L, H, _ = q.shape
    J, G = k.shape[1:3]
    if mask is not None:
        mask = np.broadcast_to(mask, (B, H, L, J))
    sinks = np.full(H, -np.inf) if sinks is None else sinks
    step = max(1, _SCORES // max(J, 1))
    y = np.empty((B, L, H, v.shape[3]), q.dtype)
    for b, h in np.ndindex(B, H):
        g = h // (H // G)
        for first in range(0, L, step):
            block = slice(first, min(L, first + step))
            scores = matmul(q[b, block, h], k[b, :, g].T)
            scores *= scale
            if mask is not None:
                scores += mask[b, h, block]
            if diagonal is not None:
                scores[~_seen(block, J, diagonal)] = -np.inf
            weights = softmax_sinks(scores, np.full(1, sinks[h], q.dtype))
            y[b, block, h] = matmul(weights, v[b, :, g])
    return y


def _seen(queries, J, diagonal):
    """Return which keys each query of a slice may see. -> bool [queries, J]"""
    return np.arange(J) <= np.arange(queries.start, queries.stop)[:, None] + diagonal


def causal_mask(L, dtype, J=None, diagonal=0):
    """Make the additive mask of `diagonal`: 0 if j <= l + diagonal, else -inf. -> [L, J]; J defaults to L"""
    return boolean_mask(_seen(slice(0, L), L if J is None else J, diagonal), dtype)


def boolean_mask(seen, dtype):
    """Make the additive mask that hides the keys where `seen` is false: 0 or -inf. -> shape of seen"""
    return np.where(seen, 0.0, -np.inf).astype(dtype)
