"""Attention whose scores are products of int8, as SageAttention's."""

import numpy as np

from refsd.kernels.quant.activation_codes import GRIDS, divided, scale_of, to_grid
from refsd.kernels.softmax import softmax_sinks


def attention_int8(q, k, v, scale, query_block, key_block, smooth=True, matmul=np.matmul):
    """Mix the values by how well their keys match each query, both rounded to int8.

        k'      = k - its mean over all keys, where smooth: all scores of a query change by one number
        q8, k8  = codes of scale q and k': neighbouring tokens of a head share a scale, max |x| / 127
        s[l, j] = (q8[l] . k8[j]) s_q s_k
        y[l]    = sum_j softmax_j(s[l, j]) v[j]

    q:           [B, L, H, D]
    k:           [B, J, G, D], G a divisor of H: query head h reads head h // (H/G) of k and v
    v:           [B, J, G, E]
    query_block: tokens that share a scale of q; the last block may be incomplete
    key_block:   the same of k
    smooth:      without it a channel of k that is large for every key takes the codes of all others
    matmul:      np.matmul or another with its arguments, for the sum of the values
    -> y:        [B, L, H, E], dtype of q

    Ties are rounded away from zero. Products of codes add up exactly, other sums accumulate in the dtype of q.
    Source: Zhang et al. 2024, SageAttention, section 4.2 and algorithm 1; sageattention 1.0.6, quant_per_block.py.
    """
    B, L, H, _ = q.shape
    G = k.shape[2]
    q_codes, q_scale = codes_of_blocks(q * q.dtype.type(scale), query_block)
    k_codes, k_scale = codes_of_blocks(smoothed(k) if smooth else k, key_block)
    no_sink = np.full(1, -np.inf, q.dtype)
    y = np.empty((B, L, H, v.shape[3]), q.dtype)
    for b, h in np.ndindex(B, H):
        g = h // (H // G)
        scores = exact_products(q_codes[b, :, h], k_codes[b, :, g]).astype(q.dtype)
        scores *= q_scale[b, :, h] * k_scale[b, :, g].T
        y[b, :, h] = matmul(softmax_sinks(scores, no_sink), v[b, :, g])
    return y


def smoothed(k):
    """Subtract from the keys their mean over all keys. [B, J, G, D] -> the same"""
    return k - k.mean(axis=1, keepdims=True, dtype=k.dtype)


def codes_of_blocks(x, block):
    """Round x to int8 under one scale for each head and block of tokens.

    x:       [B, L, H, D]
    -> q:    [B, L, H, D], integers of the dtype of x
    -> scale: [B, L, H, 1], that of each token's block
    """
    scale = np.concatenate(
        [
            np.broadcast_to(scale_of(part, (1, 3), GRIDS["int8"].largest), (*part.shape[:3], 1))
            for part in np.split(x, range(block, x.shape[1], block), axis=1)
        ],
        axis=1,
    )
    return to_grid(divided(x, scale), GRIDS["int8"], "away"), scale


def exact_products(q, k):
    """Multiply rows of codes; no sum of float64 rounds below 2^53. [L, D], [J, D] -> float64 [L, J]"""
    return np.matmul(q.astype(np.float64), k.astype(np.float64).T)
