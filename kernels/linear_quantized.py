"""Compute the linear layer as ggml's CPU backend does, with both factors in blocks of integers."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from refsd.kernels.quant import BLOCK_TYPES, mxfp4, nvfp4
from refsd.kernels.quant.block_type import halves
from refsd.kernels.quant.dot_q8_0 import dot_nested, dot_q4_0, dot_scaled
from refsd.kernels.quant.dot_q8_1 import dot_with_minimum
from refsd.kernels.quant.dot_q8_k import dot_in_lanes, dot_iq4_xs, dot_q2_k, dot_whole, minimums_q4_k

# Number of weights to unpack at a time: 16 MiB of float32.
_CHUNK = 1 << 22


class Dot(NamedTuple):
    """How weights of one type are multiplied.

    activation: block type into which the activations are packed
    multiply:   uint8 [O, n, bytes], uint8 [M, n', bytes'] -> float32 [M, O]
    """

    activation: str
    multiply: Callable[[np.ndarray, np.ndarray], np.ndarray]


def _half_at(offset: int) -> Callable[[np.ndarray], np.ndarray]:
    return lambda blocks: halves(blocks, offset)


def _scattered_half(blocks):
    """Read IQ1_M's float16 scale, which has one nibble in each of four bytes, the lowest first."""
    nibbles = (blocks[:, [49, 51, 53, 55]] >> 4).astype(np.uint16)
    bits = (nibbles << np.array([0, 4, 8, 12], np.uint16)).sum(axis=1, dtype=np.uint16)
    return bits.view(np.float16).astype(np.float32)


# weight type -> its product. Source: ggml-cpu.c, type_traits_cpu[].vec_dot and vec_dot_type.
DOTS: dict[str, Dot] = {
    "q4_0": Dot("q8_0", dot_q4_0),
    "q4_1": Dot("q8_1", dot_with_minimum("q4_1")),
    "q5_0": Dot("q8_0", dot_scaled("q5_0", _half_at(0))),
    "q5_1": Dot("q8_1", dot_with_minimum("q5_1")),
    "q8_0": Dot("q8_0", dot_scaled("q8_0", _half_at(0))),
    "q2_k": Dot("q8_k", dot_q2_k),
    "q3_k": Dot("q8_k", dot_in_lanes("q3_k", 108)),
    "q4_k": Dot("q8_k", dot_in_lanes("q4_k", 0, minimums_q4_k)),
    "q5_k": Dot("q8_k", dot_in_lanes("q5_k", 0, minimums_q4_k)),
    "q6_k": Dot("q8_k", dot_in_lanes("q6_k", 208)),
    "iq2_xxs": Dot("q8_k", dot_whole("iq2_xxs", _half_at(0))),
    "iq2_xs": Dot("q8_k", dot_whole("iq2_xs", _half_at(0))),
    "iq2_s": Dot("q8_k", dot_whole("iq2_s", _half_at(0))),
    "iq3_xxs": Dot("q8_k", dot_whole("iq3_xxs", _half_at(0))),
    "iq3_s": Dot("q8_k", dot_whole("iq3_s", _half_at(0))),
    "iq1_s": Dot("q8_k", dot_whole("iq1_s", _half_at(0))),
    "iq1_m": Dot("q8_k", dot_whole("iq1_m", _scattered_half)),
    "iq4_nl": Dot("q8_0", dot_scaled("iq4_nl", _half_at(0))),
    "iq4_xs": Dot("q8_k", dot_iq4_xs),
    "tq1_0": Dot("q8_k", dot_whole("tq1_0", _half_at(52))),
    "tq2_0": Dot("q8_k", dot_whole("tq2_0", _half_at(64))),
    "mxfp4": Dot("q8_0", dot_scaled("mxfp4", lambda blocks: mxfp4.HALF_SCALES[blocks[:, 0]])),
    "nvfp4": Dot("q8_0", dot_scaled("nvfp4", lambda blocks: nvfp4.HALF_SCALES[blocks[:, :4]])),
    "q1_0": Dot("q8_0", dot_nested("q1_0")),
    "q2_0": Dot("q8_0", dot_nested("q2_0")),
}


def linear_quantized(x, blocks, name):
    """Pack activations into blocks and multiply them by a matrix of blocks.

        y[m, o] = sum_k x'[m, k] w[o, k]        x' = x packed into DOTS[name].activation

    x:      float32 [..., K], finite
    blocks: uint8 [O, n, bytes]; the n blocks of a row hold its K weights
    name:   the blocks' type, a key of DOTS
    -> y:   float32 [..., O]

    Each block's products of codes are summed exactly in int32. They are then scaled, and blocks are added, in
    float32 in the order of ggml's portable C, with which the result is bit-exact. ggml's vector code adds in
    another order: measured difference up to 1.1 u of the sum of magnitudes, u = 2**-24.

    One row of x takes 0.5 to 2 times as long as expanding the matrix and multiplying by BLAS; many rows take
    longer.
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
