"""Multiply weights that have a minimum by Q8_1 activations as ggml's CPU backend does."""

import numba
import numpy as np

from refsd.kernels._jit import kernel
from refsd.kernels.quant.block_type import halves
from refsd.kernels.quant.integers import integer_dot, integers


def minimums(weights):
    """Read the minimum m of Q4_1 or Q5_1 blocks. uint8 [..., bytes] -> float32 [...]"""
    return _half(weights, 2)


def _half(blocks, offset):
    return halves(blocks.reshape(-1, blocks.shape[-1]), offset).reshape(blocks.shape[:-1])


def dot_with_minimum(name: str):
    """Make the product for Q4_1 and Q5_1: the minimum is multiplied by the activation block's stored sum.

        y = sum_b ((d_b e_b) s_b + m_b t_b)        s_b = sum_j q_bj p_bj

    weights:     uint8 [O, n, bytes], of which d, m and q
    activations: uint8 [M, n, 36], of which e, t (d times the sum of the codes) and p
    -> y:        float32 [M, O]

    s, d e and m t are exact. (d e) s, the sum of the two, and the sum over the blocks are rounded to float32.
    Bit-exact with ggml's C, where the compiler did not round (d e) s + m t once (FMA).
    Source: ggml-cpu/quants.c, ggml_vec_dot_q4_1_q8_1_generic.
    """

    def dot(weights, activations):
        d, m = _half(weights, 0), minimums(weights)
        e, t = _half(activations, 0), _half(activations, 2)
        p = np.ascontiguousarray(activations[:, :, 4:]).view(np.int8)
        return _dot(integers(name, weights), d, m, e, t, p)

    return dot


@kernel
def _dot(q, d, minimum, e, t, p):
    y = np.empty((p.shape[0], q.shape[0]), np.float32)
    for o in numba.prange(q.shape[0]):
        for m in range(p.shape[0]):
            total = np.float32(0)
            for b in range(q.shape[1]):
                s = np.float32(integer_dot(q[o, b], p[m, b]))
                total += (d[o, b] * e[m, b]) * s + minimum[o, b] * t[m, b]
            y[m, o] = total
    return y
