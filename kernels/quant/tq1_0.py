"""TQ1_0: 256 weights of -1, 0 or 1 under one scale, in 1.69 bits each: five ternary digits to a byte.

byte  0 .. 31  qs  digit n of byte m is weight 32 n + m
byte 32 .. 47  qs  digit n of byte 32 + m is weight 160 + 16 n + m
byte 48 .. 51  qh  digit n of byte 48 + m is weight 240 + 4 n + m; four digits, the fifth is 0
byte 52 .. 53  d   float16

A byte holds a fraction: five digits q0 .. q4 make it 256 (q0/3 + q1/9 + .. + q4/243), rounded up. Times 3^n modulo
256, digit n is in front; times 3, that digit is what overflows the byte.
"""

import numba
import numpy as np

from refsd.kernels._jit import kernel
from refsd.kernels.quant.block_type import BlockType, expander, frozen, half, half_bytes
from refsd.kernels.quant.rounding import half_away

BLOCK = 256
BYTES = 54
assert BYTES == 32 + 16 + 4 + 2 and BLOCK == 5 * 32 + 5 * 16 + 4 * 4


@kernel(parallel=False)
def _digit(byte, power):
    fraction = np.uint8(byte * power)
    return np.float32(np.uint16(fraction) * np.uint16(3) >> np.uint16(8)) - np.float32(1)


@expander(BLOCK, slp=True)
def dequantize(blocks, y):
    """Expand TQ1_0 blocks.

        y = d (q - 1)

    blocks: uint8 [n, 54]
    -> y:   float32 [n, 256]

    Error: none; bit-exact with ggml and gguf-py.
    Source: ggml-quants.c, dequantize_row_tq1_0.
    """
    for b in numba.prange(blocks.shape[0]):
        d = half(blocks, b, 52)
        power = np.uint8(1)
        for n in range(5):
            for m in range(32):
                y[b, 32 * n + m] = d * _digit(blocks[b, m], power)
            for m in range(16):
                y[b, 160 + 16 * n + m] = d * _digit(blocks[b, 32 + m], power)
            if n < 4:
                for m in range(4):
                    y[b, 240 + 4 * n + m] = d * _digit(blocks[b, 48 + m], power)
            power = np.uint8(power * np.uint8(3))
    return y


def quantize(x):
    """Pack into TQ1_0 blocks.

        d = max |x|        q = x / d + 1, rounded half away from zero

    x:         float32 [n, 256], finite
    -> blocks: uint8 [n, 54]

    x / d is x times the float32 reciprocal of d. Bit-exact with ggml's C.
    Source: ggml-quants.c, quantize_row_tq1_0_ref.
    """
    d, q = ternary(frozen(x))
    powers = np.array([81, 27, 9, 3, 1], np.uint16)
    parts = q[:, :160].reshape(-1, 5, 32), q[:, 160:240].reshape(-1, 5, 16), q[:, 240:].reshape(-1, 4, 4)
    numbers = [np.einsum("bnm,n->bm", p, powers[: p.shape[1]], dtype=np.uint16) for p in parts]
    fractions = (np.concatenate(numbers, axis=1) * 256 + 242) // 243
    return np.concatenate([fractions.astype(np.uint8), half_bytes(d)], axis=1)


@kernel
def ternary(x):
    """Each block's largest magnitude, and its elements rounded to -1, 0 or 1 times that, plus 1."""
    d = np.empty(x.shape[0], np.float32)
    q = np.empty(x.shape, np.uint8)
    for b in numba.prange(x.shape[0]):
        largest = np.float32(0)
        for j in range(x.shape[1]):
            largest = abs(x[b, j]) if abs(x[b, j]) > largest else largest
        d[b] = largest
        inverse = np.float32(1) / largest if largest != 0 else np.float32(0)
        for j in range(x.shape[1]):
            q[b, j] = np.uint8(np.int64(half_away(x[b, j] * inverse)) + 1)
    return d, q


TQ1_0 = BlockType("tq1_0", 34, BLOCK, BYTES, dequantize, quantize)
