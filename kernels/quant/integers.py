"""The integers inside a block: what it expands to once its floating-point scales are one.

ggml never expands a weight to multiply it: it multiplies these integers with an activation's codes, exactly, and
only then applies the scales. A weight is q for the 32-wide types, and q times its group's integer scale for the
256-wide ones.
"""

from typing import NamedTuple

import numpy as np

from refsd.kernels._jit import kernel
from refsd.kernels.quant import BLOCK_TYPES

_ONE, _ZERO = b"\x00\x3c", b"\x00\x00"  # float16


class Unit(NamedTuple):
    """
    scales: byte offset -> the bytes that make this scale one, or this minimum zero
    factor: what then still turns the expanded values into integers
    """

    scales: dict[int, bytes]
    factor: int = 1


UNITS = {
    "q4_0": Unit({0: _ONE}),
    "q4_1": Unit({0: _ONE, 2: _ZERO}),
    "q5_0": Unit({0: _ONE}),
    "q5_1": Unit({0: _ONE, 2: _ZERO}),
    "q8_0": Unit({0: _ONE}),
    "q2_k": Unit({80: _ONE, 82: _ZERO}),
    "q3_k": Unit({108: _ONE}),
    "q4_k": Unit({0: _ONE, 2: _ZERO}),
    "q5_k": Unit({0: _ONE, 2: _ZERO}),
    "q6_k": Unit({208: _ONE}),
}


def integers(name, blocks):
    """The integers of a type's blocks: its scales are replaced, and the ordinary expansion does the rest.

    blocks: uint8 [..., bytes]
    -> q:   float32 [..., block], whole numbers, exact: none is over 2**13
    """
    unit = UNITS[name]
    blocks = blocks.copy()
    for offset, scale in unit.scales.items():
        blocks[..., offset : offset + len(scale)] = np.frombuffer(scale, np.uint8)
    q = BLOCK_TYPES[name].dequantize(blocks.reshape(-1, blocks.shape[-1]))
    if unit.factor != 1:
        q *= np.float32(unit.factor)
    return q.reshape(*blocks.shape[:-1], -1)


@kernel(parallel=False)
def integer_dot(q, codes):
    """sum_j q[j] codes[j], exact. q: float32 [n], from `integers`; codes: int8 or int16 [n] -> int32"""
    total = np.int32(0)
    for j in range(q.shape[0]):
        total = np.int32(total + np.int32(q[j]) * np.int32(codes[j]))
    return total
