"""Extract the integers of a block: the values to which it expands if its floating-point scales are 1.

ggml never expands a weight to multiply it: it multiplies these integers with an activation's codes, exactly, and
only then applies the scales. A weight is q for the 32-wide types, and q times its group's integer scale for the
256-wide ones.
"""

from typing import NamedTuple

import numpy as np

from refsd.kernels import quant
from refsd.kernels._jit import kernel
from refsd.kernels.scratch import scratch

_ONE, _ZERO = b"\x00\x3c", b"\x00\x00"  # float16


class Unit(NamedTuple):
    """How to replace a type's scales so that it expands to integers.

    scales: byte offset -> bytes that set this scale to 1, or this minimum to 0
    factor: factor that then turns the expanded values into integers
    keep:   the bits of those bytes that do not belong to a scale
    """

    scales: dict[int, bytes]
    factor: int = 1
    keep: int = 0


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
    "iq2_xxs": Unit({0: _ONE}, 8),
    "iq2_xs": Unit({0: _ONE}, 8),
    "iq2_s": Unit({0: _ONE}, 8),
    "iq3_xxs": Unit({0: _ONE}, 4),
    "iq3_s": Unit({0: _ONE}),
    "iq1_s": Unit({0: _ONE}, 8),
    # float16 one is 0x3c00, a nibble in the top half of each of four bytes
    "iq1_m": Unit({49: b"\x00", 51: b"\x00", 53: b"\xc0", 55: b"\x30"}, 8, keep=0x0F),
    "iq4_nl": Unit({0: _ONE}),
    # ggml counts the groups' scales among the floats: 33, less the 32 that they are off by
    "iq4_xs": Unit({0: _ONE, 2: b"\xaa\xaa", 4: b"\x11" * 4}),
    "tq1_0": Unit({52: _ONE}),
    "tq2_0": Unit({64: _ONE}),
    "mxfp4": Unit({0: b"\x80"}),
    "nvfp4": Unit({0: b"\x40" * 4}),
    "q1_0": Unit({0: _ONE}),
    "q2_0": Unit({0: _ONE}),
}


def integers(name, blocks):
    """The integers of a type's blocks: its scales are replaced, and the ordinary expansion does the rest.

    blocks: uint8 [..., bytes]
    -> q:   float32 [..., block], whole numbers, exact: none is over 2**13. Valid until the next call.
    """
    unit, block = UNITS[name], quant.BLOCK_TYPES[name].block
    ones = scratch("blocks of scale one", (blocks.size // blocks.shape[-1], blocks.shape[-1]), np.uint8)
    ones[:] = blocks.reshape(ones.shape)
    for offset, scale in unit.scales.items():
        for at, byte in enumerate(scale, offset):
            ones[:, at] = ones[:, at] & np.uint8(unit.keep) | np.uint8(byte) if unit.keep else byte
    q = quant.BLOCK_TYPES[name].dequantize(ones, out=scratch("integers", (len(ones), block), np.float32))
    if unit.factor != 1:
        q *= np.float32(unit.factor)
    return q.reshape(*blocks.shape[:-1], -1)


@kernel(parallel=False)
def integer_dot(q, codes):
    """Compute sum_j q[j] codes[j] exactly. q: float32 [n], from `integers`; codes: int8 or int16 [n] -> int32"""
    total = np.int32(0)
    for j in range(q.shape[0]):
        total = np.int32(total + np.int32(q[j]) * np.int32(codes[j]))
    return total
