"""Attention in one pass over the keys with a float16 sum: ggml's flash attention on a CPU."""

import math

import numpy as np
from numba import prange

from refsd.kernels._jit import kernel


@kernel(parallel=False)
def round_to_f16(x):
    """Round x to the nearest float16, as a float32; a tie may go to either neighbour.

    x: float32

    Normal numbers use Veltkamp's split at 11 bits. Below 2^-14, 1/2 is added and subtracted: the last
    bit of such a sum is float16's smallest number.
    Source: Dekker 1971, section 5; IEEE 754 binary16.
    """
    size = abs(x)
    if size < np.float32(2.0**-14):
        return math.copysign((size + np.float32(0.5)) - np.float32(0.5), x)
    if size >= np.float32(65520.0):
        return math.copysign(np.float32(math.inf), x)
    c = x * np.float32(8193.0)
    return c - (c - x)


@kernel
def attention_online_f16(q, k, v, scale, mask, sinks):
    """Compute attention whose weighted sum accumulates in float16, along with the running softmax.

        s_j = scale q . k_j + mask_j          m_j = max(m_{j-1}, s_j)
        S_j = S_{j-1} exp(m_{j-1} - m_j) + exp(s_j - m_j)
        V_j = f16(f16(V_{j-1} exp(m_{j-1} - m_j)) + v_j exp(s_j - m_j)),   y = V_J / S_J

    q:     [B, L, H, D], float32
    k, v:  [B, J, G, D] and [B, J, G, E], float32, G a divisor of H: see attention.py
    mask:  [1 or B, 1 or H, 1 or L, 1 or J], float32, added to the scores; -inf masks
    sinks: [H], float32, in S after the last key; -inf is no sink
    -> y:  [B, L, H, E], float32; a query that sees no key gives zeros

    Scores and S accumulate in float32, V in float16.
    Source: Milakov & Gimelshein 2018, algorithm 3; ggml 0.9.8 src/ggml-cpu/ops.cpp,
    ggml_compute_forward_flash_attn_ext_f16_one_chunk.
    """
    B, L, H, D = q.shape
    J, G, E = v.shape[1:]
    mB, mH, mL, mJ = mask.shape
    y = np.empty((B, L, H, E), np.float32)
    for row in prange(B * L * H):
        b, l, h = row // (L * H), row // H % L, row % H
        g = h // (H // G)
        total = np.zeros(E, np.float32)
        highest = np.float32(-math.inf)
        weights = np.float32(0.0)
        for j in range(J):
            s = np.float32(0.0)
            for d in range(D):
                s += q[b, l, h, d] * k[b, j, g, d]
            s = s * np.float32(scale) + mask[b % mB, h % mH, l % mL, j % mJ]
            if s == -math.inf:
                continue
            weight = np.float32(1.0)
            if s > highest:
                shrink = np.float32(math.exp(highest - s))
                highest = s
                weights *= shrink
                for d in range(E):
                    total[d] = round_to_f16(total[d] * shrink)
            else:
                weight = np.float32(math.exp(s - highest))
            weights += weight
            for d in range(E):
                total[d] = round_to_f16(total[d] + v[b, j, g, d] * weight)
        if sinks[h] > -math.inf:
            top = max(highest, sinks[h])
            shrink = np.float32(math.exp(highest - top))
            for d in range(E):
                total[d] *= shrink
            weights = weights * shrink + np.float32(math.exp(sinks[h] - top))
        for d in range(E):
            y[b, l, h, d] = total[d] / weights if weights > 0 else np.float32(0.0)
    return y
