"""Multiply weights in blocks of 256 by Q8_K activations as ggml's CPU backend does, by four forms of the sum."""

from collections.abc import Callable

import numba
import numpy as np

from refsd.kernels._jit import kernel
from refsd.kernels.quant.block_type import halves
from refsd.kernels.quant.integers import UNITS, integer_dot, integers

LANES = 8

Scales = Callable[[np.ndarray], np.ndarray]


def _opened(activations):
    """Unpack Q8_K blocks, uint8 [M, n, 292] -> e float32 [M, n], p int8 [M, n, 256], bsums int16 [M, n, 16]"""
    e = np.ascontiguousarray(activations[:, :, :4]).view("<f4")[:, :, 0]
    p = np.ascontiguousarray(activations[:, :, 4:260]).view(np.int8)
    return e, p, np.ascontiguousarray(activations[:, :, 260:]).view("<i2")


def _halves(blocks, offset):
    """Read the float16 at an offset of each block. uint8 [O, n, bytes] -> float32 [O, n]"""
    return halves(blocks.reshape(-1, blocks.shape[2]), offset).reshape(blocks.shape[:2])


def dot_whole(name: str, scales: Scales):
    """Make the product for types with one sum of integers for each block: IQ2, IQ3, IQ1 and the ternary types.

        y = f sum_b (d_b e_b) s_b        s_b = sum_j q_bj p_bj

    scales:      uint8 [n, bytes] -> d, float32 [n]
    weights:     uint8 [O, n, bytes], of which d and q
    activations: uint8 [M, n, 292], of which e and p
    -> y:        float32 [M, O]

    s is exact; each product and the sum over the blocks are rounded to float32. 1 / f is the power of two that
    turns the fractions in q into integers. Bit-exact with ggml's C.
    Source: ggml-cpu/quants.c, ggml_vec_dot_iq2_xxs_q8_K_generic and its like.
    """
    factor = np.float32(UNITS[name].factor)

    def dot(weights, activations):
        e, p, _ = _opened(activations)
        d = scales(weights.reshape(-1, weights.shape[2])).reshape(weights.shape[:2])
        return _dot_whole(integers(name, weights), d, e, p) / factor

    return dot


@kernel
def _dot_whole(q, d, e, p):
    y = np.empty((p.shape[0], q.shape[0]), np.float32)
    for o in numba.prange(q.shape[0]):
        for m in range(p.shape[0]):
            total = np.float32(0)
            for b in range(q.shape[1]):
                total += (d[o, b] * e[m, b]) * np.float32(integer_dot(q[o, b], p[m, b]))
            y[m, o] = total
    return y


def dot_iq4_xs(weights, activations):
    """Multiply IQ4_XS weights with Q8_K activations.

        y = sum_b sum_g ((d_b e_b) (scale_bg - 32)) s_bg        s_bg = sum_j q_bgj p_bgj

    s is exact; everything else is rounded to float32, including the products with the groups' scales, which are
    integers in all other types.
    Bit-exact with ggml's C.
    Source: ggml-cpu/quants.c, ggml_vec_dot_iq4_xs_q8_K_generic.
    """
    e, p, _ = _opened(activations)
    O, n, _ = weights.shape
    high = weights[:, :, 2:4, None] >> np.array([0, 2, 4, 6], np.uint8) & 0x3
    low = weights[:, :, 4:8, None] >> np.array([0, 4], np.uint8) & 0xF
    scales = (high.reshape(O, n, 8) << 4 | low.reshape(O, n, 8)).astype(np.float32) - np.float32(32)
    q = integers("iq4_xs", weights).reshape(O, n, 8, 32)
    return _dot_groups(q, scales, _halves(weights, 0), e, p.reshape(-1, n, 8, 32))


@kernel
def _dot_groups(q, scales, d, e, p):
    y = np.empty((p.shape[0], q.shape[0]), np.float32)
    for o in numba.prange(q.shape[0]):
        for m in range(p.shape[0]):
            total = np.float32(0)
            for b in range(q.shape[1]):
                both = d[o, b] * e[m, b]
                for g in range(q.shape[2]):
                    total += (both * scales[o, b, g]) * np.float32(integer_dot(q[o, b, g], p[m, b, g]))
            y[m, o] = total
    return y


def dot_q2_k(weights, activations):
    """Multiply Q2_K weights with Q8_K activations.

        y = sum_b ((d_b e_b) s_b - (c_b e_b) t_b)        s_b = sum_j q_bj p_bj        t_b = sum_g minimum_bg bsum_bg

    c is dmin; bsum are the activations' sums over 16 codes. s and t are exact, all else is rounded to float32.
    Bit-exact with ggml's C, where the compiler did not round the difference of the products once (FMA).
    Source: ggml-cpu/quants.c, ggml_vec_dot_q2_K_q8_K_generic.
    """
    e, p, bsums = _opened(activations)
    minimums = (weights[:, :, :16] >> 4).astype(np.float32)
    return _dot_q2_k(integers("q2_k", weights), minimums, _halves(weights, 80), _halves(weights, 82), e, p, bsums)


@kernel
def _dot_q2_k(q, minimums, d, dmin, e, p, bsums):
    y = np.empty((p.shape[0], q.shape[0]), np.float32)
    for o in numba.prange(q.shape[0]):
        for m in range(p.shape[0]):
            total = np.float32(0)
            for b in range(q.shape[1]):
                s = np.float32(integer_dot(q[o, b], p[m, b]))
                t = np.float32(integer_dot(minimums[o, b], bsums[m, b]))
                total += (d[o, b] * e[m, b]) * s - (dmin[o, b] * e[m, b]) * t
            y[m, o] = total
    return y


def dot_in_lanes(
    name: str, offset: int, minimums: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]] | None = None
):
    """Make the product for Q3_K to Q6_K, whose C code keeps eight running sums, like vector lanes.

        y = sum_l sum_b (d_b e_b) s_bl - sum_b (c_b e_b) t_b

        s_bl = sum_i q_b,8i+l p_b,8i+l        t_b = sum_g minimum_bg bsum_bg

    minimums: uint8 [O, n, bytes] -> c float32 [O, n], minimum float32 [O, n, 16]; None: the type has none

    s and t are exact, all else is rounded to float32; the minimums' sum comes first, then the lanes in turn.
    Bit-exact with ggml's C, where the compiler did not round products and sums once (FMA).
    Source: ggml-cpu/quants.c, ggml_vec_dot_q4_K_q8_K_generic and its like.
    """

    def dot(weights, activations):
        e, p, bsums = _opened(activations)
        O, n, _ = weights.shape
        if minimums is None:
            dmin, minimum = np.zeros((O, n), np.float32), np.zeros((O, n, 0), np.float32)
            bsums = bsums[:, :, :0]
        else:
            dmin, minimum = minimums(weights)
        return _dot_in_lanes(integers(name, weights), minimum, _halves(weights, offset), dmin, e, p, bsums)

    return dot


@kernel
def _dot_in_lanes(q, minimums, d, dmin, e, p, bsums):
    y = np.empty((p.shape[0], q.shape[0]), np.float32)
    for o in numba.prange(q.shape[0]):
        lanes, sums = np.empty(LANES, np.int32), np.empty(LANES, np.float32)
        for m in range(p.shape[0]):
            total = np.float32(0)
            sums[:] = 0
            for b in range(q.shape[1]):
                lanes[:] = 0
                for i in range(q.shape[2] // LANES):
                    for lane in range(LANES):
                        j = LANES * i + lane
                        lanes[lane] = np.int32(lanes[lane] + np.int32(q[o, b, j]) * np.int32(p[m, b, j]))
                scale = d[o, b] * e[m, b]
                for lane in range(LANES):
                    sums[lane] += scale * np.float32(lanes[lane])
                total -= (dmin[o, b] * e[m, b]) * np.float32(integer_dot(minimums[o, b], bsums[m, b]))
            for lane in range(LANES):
                total += sums[lane]
            y[m, o] = total
    return y


def minimums_q4_k(weights):
    """dmin, and each 16 weights' minimum, of Q4_K and Q5_K blocks.

    uint8 [O, n, bytes] -> float32 [O, n], float32 [O, n, 16]
    """
    low, nibbles = weights[:, :, 8:12], weights[:, :, 12:16]
    six = np.concatenate([low & 0x3F, nibbles >> 4 | low >> 6 << 4], axis=2)
    return _halves(weights, 2), np.repeat(six, 2, axis=2).astype(np.float32)
