"""The linear layer as ggml's CPU computes it: both factors in blocks of integers."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from refsd.kernels.quant import BLOCK_TYPES
from refsd.kernels.quant.block_type import halves
from refsd.kernels.quant.dot_q8_0 import dot_q4_0, dot_scaled
from refsd.kernels.quant.dot_q8_1 import dot_with_minimum
from refsd.kernels.quant.dot_q8_k import dot_in_lanes, dot_q2_k, minimums_q4_k

# Weights that are opened at a time: what a cache holds.
_CHUNK = 1 << 19


class Dot(NamedTuple):
    """
    activation: the type that the other factor is packed into
    multiply:   uint8 [O, n, bytes], uint8 [M, n', bytes'] -> float32 [M, O]
    """

    activation: str
    multiply: Callable[[np.ndarray, np.ndarray], np.ndarray]


def _first_half(blocks):
    return halves(blocks, 0)


# Weight type -> how it is multiplied. Source: ggml-cpu.c, type_traits_cpu[].vec_dot and vec_dot_type.
DOTS: dict[str, Dot] = {
    "q4_0": Dot("q8_0", dot_q4_0),
    "q5_0": Dot("q8_0", dot_scaled("q5_0", _first_half)),
    "q8_0": Dot("q8_0", dot_scaled("q8_0", _first_half)),
    "q4_1": Dot("q8_1", dot_with_minimum("q4_1")),
    "q5_1": Dot("q8_1", dot_with_minimum("q5_1")),
    "q2_k": Dot("q8_k", dot_q2_k),
    "q3_k": Dot("q8_k", dot_in_lanes("q3_k", 108)),
    "q4_k": Dot("q8_k", dot_in_lanes("q4_k", 0, minimums_q4_k)),
    "q5_k": Dot("q8_k", dot_in_lanes("q5_k", 0, minimums_q4_k)),
    "q6_k": Dot("q8_k", dot_in_lanes("q6_k", 208)),
}


def linear_quantized(x, blocks, name):
    """Multiply activations, packed on the way, by a matrix of blocks.

        y[m, o] = sum_k x'[m, k] w[o, k]        x' = x packed into DOTS[name].activation

    x:      float32 [..., K], finite
    blocks: uint8 [O, n, bytes], n blocks a row, of K weights together
    name:   their type, a key of DOTS
    -> y:   float32 [..., O]

    The codes' products are summed exactly, block by block, in int32; scales meet them, and blocks are added, in
    float32, in the order of ggml's portable C, with which it is bit-exact. ggml's vector code adds in another
    order: measured up to 0.7 u of the sum of magnitudes away, u = 2**-24.

    One row takes 0.5 to 0.95 of the time of expanding the matrix and multiplying by BLAS; more than eight, longer.
    Source: ggml-cpu/ggml-cpu.c, ggml_compute_forward_mul_mat; ggml-cpu/quants.c, ggml_vec_dot_*_generic.
    """
    dot = DOTS[name]
    K = x.shape[-1]
    pack, size = BLOCK_TYPES[dot.activation].quantize_activation, BLOCK_TYPES[dot.activation].block
    assert pack is not None
    activations = pack(x.reshape(-1, size)).reshape(-1, K // size, BLOCK_TYPES[dot.activation].bytes)
    y = np.empty((len(activations), len(blocks)), np.float32)
    rows = max(1, _CHUNK // K)
    for first in range(0, len(blocks), rows):
        y[:, first : first + rows] = dot.multiply(blocks[first : first + rows], activations)
    return y.reshape(*x.shape[:-1], len(blocks))
