"""Attention in one pass over the keys: the softmax has a running maximum, so that scores are not stored.

The queries of a tile lie along the vector lanes: scores [keys, queries], result [channels,
queries]. Maximum, exponential and sum then work lane by lane, and one routine computes both products.
"""

import numpy as np
from numba import prange

from refsd.kernels._jit import kernel
from refsd.kernels.exponential import exp_flushed

_LANES = 128  # queries in a tile
_KEYS = 64  # keys in a tile


@kernel(parallel=False, contract=True)
def _accumulate(c, a, b):
    """Compute c += a b on a tile: a [M, K], b [K * lanes], c [M * lanes], b and c flat.

    Four rows of c and four terms are processed at a time, in registers. (Do not use a range with a step: Numba
    cannot exclude negative indices then, and does not vectorise the loop, which is ten times slower.)
    """
    M, K = a.shape
    for quad in range(M // 4):
        m = 4 * quad
        c0 = m * _LANES
        c1, c2, c3 = c0 + _LANES, c0 + 2 * _LANES, c0 + 3 * _LANES
        for four in range(K // 4):
            k = 4 * four
            p0, p1, p2, p3 = a[m, k], a[m, k + 1], a[m, k + 2], a[m, k + 3]
            q0, q1, q2, q3 = a[m + 1, k], a[m + 1, k + 1], a[m + 1, k + 2], a[m + 1, k + 3]
            s0, s1, s2, s3 = a[m + 2, k], a[m + 2, k + 1], a[m + 2, k + 2], a[m + 2, k + 3]
            t0, t1, t2, t3 = a[m + 3, k], a[m + 3, k + 1], a[m + 3, k + 2], a[m + 3, k + 3]
            for l in range(_LANES):
                i = k * _LANES + l
                r0, r1, r2, r3 = b[i], b[i + _LANES], b[i + 2 * _LANES], b[i + 3 * _LANES]
                c[c0 + l] = c[c0 + l] + p0 * r0 + p1 * r1 + p2 * r2 + p3 * r3
                c[c1 + l] = c[c1 + l] + q0 * r0 + q1 * r1 + q2 * r2 + q3 * r3
                c[c2 + l] = c[c2 + l] + s0 * r0 + s1 * r1 + s2 * r2 + s3 * r3
                c[c3 + l] = c[c3 + l] + t0 * r0 + t1 * r1 + t2 * r2 + t3 * r3
        for k in range(K - K % 4, K):
            p, q, s, t = a[m, k], a[m + 1, k], a[m + 2, k], a[m + 3, k]
            for l in range(_LANES):
                r = b[k * _LANES + l]
                c[c0 + l] += p * r
                c[c1 + l] += q * r
                c[c2 + l] += s * r
                c[c3 + l] += t * r
    for m in range(M - M % 4, M):
        for k in range(K):
            p = a[m, k]
            for l in range(_LANES):
                c[m * _LANES + l] += p * b[k * _LANES + l]


@kernel(parallel=False)
def _aligned(n, like):
    """Allocate n numbers aligned to a cache line: a vector across two costs two loads. -> [n], dtype of like"""
    a = np.empty(n + 16, like.dtype)
    skip = (64 - a.ctypes.data % 64) % 64 // like.itemsize
    return a[skip : skip + n]


@kernel(contract=True)
def _attend(q, k, v, scale, mask, diagonal, sinks, y):
    B, L, H, D = q.shape
    J, G, E = v.shape[1:]
    mB, mH, mL = mask.shape[:3]
    masked = mask.shape[3] == J
    tiles = (L + _LANES - 1) // _LANES
    zero, one, nothing = q.dtype.type(0.0), q.dtype.type(1.0), q.dtype.type(-np.inf)
    for task in prange(B * H * tiles):
        b, h, first = task // (H * tiles), task // tiles % H, task % tiles * _LANES
        g = h // (H // G)
        lanes = min(_LANES, L - first)
        # Before the keys: queries times scale, one query in each lane; output 0; the sum holds only the sink.
        queries = _aligned(D * _LANES, q)
        queries[:] = zero
        for l in range(lanes):
            for d in range(D):
                queries[d * _LANES + l] = q[b, first + l, h, d] * scale
        out = _aligned(E * _LANES, q)
        out[:] = zero
        # The sink is a score like the others, but its value vector is zero.
        total = np.full(_LANES, one if sinks[h] > nothing else zero)
        peak = np.full(_LANES, sinks[h])
        base = np.empty(_LANES, q.dtype)
        shrink = np.empty(_LANES, q.dtype)
        scores = _aligned(_KEYS * _LANES, q)

        # No query of this tile sees a key from `end` on.
        end = max(0, min(J, first + lanes + diagonal))
        for start in range(0, end, _KEYS):
            keys = min(_KEYS, end - start)
            # Phase 1: scores = K Q + mask, and -inf where the diagonal hides the key.
            scores[:] = zero
            _accumulate(scores, k[b, start : start + keys, g], queries)
            if masked and mL == 1:
                for j in range(keys):
                    hidden = mask[b % mB, h % mH, 0, start + j]
                    for l in range(_LANES):
                        scores[j * _LANES + l] += hidden
            elif masked:
                for l in range(lanes):
                    row = mask[b % mB, h % mH, first + l]
                    for j in range(keys):
                        scores[j * _LANES + l] += row[start + j]
            for j in range(max(0, first + diagonal + 1 - start), keys):
                for l in range(min(lanes, start + j - first - diagonal)):
                    scores[j * _LANES + l] = nothing

            # Phase 2: the new maximum; rescale output and sum to it.
            for l in range(_LANES):
                base[l] = peak[l]
            for j in range(keys):
                for l in range(_LANES):
                    s = scores[j * _LANES + l]
                    base[l] = s if s > base[l] else base[l]
            for l in range(_LANES):
                shrink[l] = exp_flushed(peak[l] - base[l]) if peak[l] > nothing else zero
                peak[l] = base[l]
                base[l] = base[l] if base[l] > nothing else zero
                total[l] *= shrink[l]
            for d in range(E):
                for l in range(_LANES):
                    out[d * _LANES + l] *= shrink[l]

            # Phase 3: e = exp(score - maximum), its sum, and output += e V.
            for j in range(keys):
                for l in range(_LANES):
                    e = exp_flushed(scores[j * _LANES + l] - base[l])
                    scores[j * _LANES + l] = e
                    total[l] += e
            _accumulate(out, v[b, start : start + keys, g].T, scores)

        # After the keys: divide by the sum.
        for l in range(lanes):
            for d in range(E):
                y[b, first + l, h, d] = out[d * _LANES + l] / total[l] if total[l] != zero else zero


def attention_online(q, k, v, scale, mask=None, diagonal=None, sinks=None):
    """The attention of attention.py, with memory that does not grow with the number of keys.

        m' = max(m, max_j s_j),  t' = t exp(m - m') + sum_j exp(s_j - m'),
        o' = o exp(m - m') + sum_j exp(s_j - m') v_j;  in the end y = o / t

    q:        [B, L, H, D], float32 or float64
    k, v:     [B, J, G, D] and [B, J, G, E], dtype of q, G a divisor of H: see attention.py
    mask, diagonal, sinks: see attention.py. m and t begin as -inf and 0, or with a sink as the sink and 1.
    -> y:     [B, L, H, E], dtype of q; a query that sees no key gives zeros

    Everything accumulates in the dtype of q, products with FMA. Tiles that `diagonal` hides completely are skipped.
    Error (float32): measured 2e-6 relative L2 at 4096 keys, 8e-7 at 1024.
    Source: Milakov & Gimelshein 2018, algorithm 3; Dao et al. 2022, FlashAttention, algorithm 1.
    """
    B, L, H, _ = q.shape
    J = k.shape[1]
    if mask is None:
        mask = np.zeros((1, 1, 1, J + 1), q.dtype)
    else:
        mask = np.asarray(mask, q.dtype)
        mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
        mask = np.require(np.broadcast_to(mask, (*mask.shape[:3], J)), requirements=["C", "W"])
    sinks = np.full(H, -np.inf, q.dtype) if sinks is None else np.array(sinks, q.dtype)
    y = np.empty((B, L, H, v.shape[3]), q.dtype)
    _attend(q, k, v, q.dtype.type(scale), mask, J if diagonal is None else int(diagonal), sinks, y)
    return y
