"""Multiply weights by Q8_0 activations as ggml's CPU backend does: blocks of integers, then two scales."""

from collections.abc import Callable

import numba
import numpy as np

from refsd.kernels._jit import kernel
from refsd.kernels.quant.block_type import halves
from refsd.kernels.quant.integers import integer_dot, integers

Scales = Callable[[np.ndarray], np.ndarray]


def _opened(activations, parts):
    """Unpack the scales and codes of Q8_0 blocks, in `parts` equal parts a row.

    activations: uint8 [M, n, 34] -> e float32 [M, parts], p int8 [M, parts, 32 n / parts]
    """
    M, n, size = activations.shape
    e = halves(activations.reshape(-1, size), 0).reshape(M, n)
    p = np.ascontiguousarray(activations[:, :, 2:]).view(np.int8)
    return np.repeat(e, parts // n, axis=1), p.reshape(M, parts, -1)


def dot_q4_0(weights, activations):
    """Multiply Q4_0 weights with Q8_0 activations.

        y = sum_b (s_b d_b) e_b        s_b = sum_j q_bj p_bj

    weights:     uint8 [O, n, 18], of which d and q
    activations: uint8 [M, n, 34], of which e and p
    -> y:        float32 [M, O]

    s is exact. Both products are rounded, in this order: no other type rounds twice. The sum over the blocks is in
    float32. Bit-exact with ggml's C.
    Source: ggml-cpu/quants.c, ggml_vec_dot_q4_0_q8_0_generic.
    """
    O, n, size = weights.shape
    d = halves(weights.reshape(-1, size), 0).reshape(O, n)
    return _dot_twice_rounded(integers("q4_0", weights), d, *_opened(activations, n))


@kernel
def _dot_twice_rounded(q, d, e, p):
    y = np.empty((p.shape[0], q.shape[0]), np.float32)
    for o in numba.prange(q.shape[0]):
        for m in range(p.shape[0]):
            total = np.float32(0)
            for b in range(q.shape[1]):
                total += np.float32(integer_dot(q[o, b], p[m, b])) * d[o, b] * e[m, b]
            y[m, o] = total
    return y


def dot_scaled(name: str, scales: Scales):
    """Make the product for a type whose scale is multiplied by the activations' scale first, then by the integers.

        y = sum_b s_b (d_b e_b)        s_b = sum_j q_bj p_bj

    name:   the weight's type
    scales: uint8 [n, bytes] -> float32 [n, g]: a scale for each of a block's g equal parts, over which b runs

    Rounds and sums as `dot_q4_0` does, but d e is exact unless it leaves float32's normal numbers.
    Source: ggml-cpu/quants.c, ggml_vec_dot_q5_0_q8_0_generic and the others with Q8_0.
    """

    def dot(weights, activations):
        O, _, size = weights.shape
        d = scales(weights.reshape(-1, size)).reshape(O, -1)
        q = integers(name, weights).reshape(*d.shape, -1)
        return _dot(q, d, *_opened(activations, d.shape[1]))

    return dot


def dot_nested(name: str):
    """Make the product for Q1_0 and Q2_0, whose blocks span several activation blocks.

        y = sum_b d_b (sum_i e_bi s_bi)        s_bi = sum_j q_bij p_bij

    weights:     uint8 [O, n, bytes], of which d, a float16 at byte 0, and q
    activations: uint8 [M, n i, 34], of which e and p
    -> y:        float32 [M, O]

    s is exact; each product and both sums are rounded to float32. Bit-exact with ggml's C.
    Source: ggml-cpu/quants.c, ggml_vec_dot_q1_0_q8_0_generic and ggml_vec_dot_q2_0_q8_0_generic.
    """

    def dot(weights, activations):
        O, n, size = weights.shape
        M, parts, _ = activations.shape
        d = halves(weights.reshape(-1, size), 0).reshape(O, n)
        e, p = _opened(activations, parts)
        q = integers(name, weights).reshape(O, n, parts // n, -1)
        return _dot_nested(q, d, e.reshape(M, n, -1), p.reshape(M, n, parts // n, -1))

    return dot


@kernel
def _dot_nested(q, d, e, p):
    y = np.empty((p.shape[0], q.shape[0]), np.float32)
    for o in numba.prange(q.shape[0]):
        for m in range(p.shape[0]):
            total = np.float32(0)
            for b in range(q.shape[1]):
                part = np.float32(0)
                for i in range(q.shape[2]):
                    part += e[m, b, i] * np.float32(integer_dot(q[o, b, i], p[m, b, i]))
                total += d[o, b] * part
            y[m, o] = total
    return y


@kernel
def _dot(q, d, e, p):
    y = np.empty((p.shape[0], q.shape[0]), np.float32)
    for o in numba.prange(q.shape[0]):
        for m in range(p.shape[0]):
            total = np.float32(0)
            for b in range(q.shape[1]):
                total += np.float32(integer_dot(q[o, b], p[m, b])) * (d[o, b] * e[m, b])
            y[m, o] = total
    return y
