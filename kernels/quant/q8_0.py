"""Q8_0: 32 weights, or activations, of 8 bits under one scale.

byte  0 ..  1  d   float16
byte  2 .. 33  qs  int8
"""

import numba
import numpy as np

from refsd.kernels._jit import kernel
from refsd.kernels.quant.block_type import BlockType, expander, frozen, half, half_bytes

BLOCK = 32
BYTES = 34
assert BYTES == 2 + BLOCK


@expander(BLOCK, slp=True)
def dequantize(blocks, y):
    """Expand Q8_0 blocks.

        y = d q

    blocks: uint8 [n, 34]
    -> y:   float32 [n, 32]

    Error: none; bit-exact with gguf-py.
    Source: ggml-quants.c, dequantize_row_q8_0.
    """
    for b in numba.prange(blocks.shape[0]):
        d = half(blocks, b, 0)
        for j in range(BLOCK):
            y[b, j] = d * np.float32(np.int8(blocks[b, 2 + j]))
    return y


def quantize(x):
    """Pack into Q8_0 blocks as files are made.

        d = max |x| / 127        q = x / d, rounded half away from zero

    x:         float32 [n, 32], finite
    -> blocks: uint8 [n, 34]

    x / d is x times the float32 reciprocal of the unrounded d. Bit-exact with gguf-py.
    Source: ggml-quants.c, quantize_row_q8_0_ref.
    """
    return _pack(*codes(x))


def quantize_activation(x):
    """Pack into Q8_0 blocks as ggml's matmul does with its input on x86.

        d = max |x| / 127        q = x (127 / max |x|), rounded half to even

    x:         float32 [n, 32], finite
    -> blocks: uint8 [n, 34]

    Not `quantize`: the vector code (AVX, AVX2) divides the other way round and lets the CPU round. ggml's ARM code
    rounds half to even too but multiplies by 1 / d; a codeword differs by one, rarely.
    Source: ggml-cpu/arch/x86/quants.c, quantize_row_q8_0.
    """
    return _pack(*activation_codes(x))


def codes(x):
    """The scale before its rounding to float16, and the codes, of `quantize`. -> float32 [n], int8 [n, 32]"""
    return _quantize(frozen(x))


def activation_codes(x):
    """The same of `quantize_activation`."""
    return _quantize_activation(frozen(x))


def _pack(d, qs):
    return np.concatenate([half_bytes(d), qs.view(np.uint8)], axis=1)


@kernel(parallel=False)
def _largest(row):
    largest = np.float32(0)
    for j in range(BLOCK):
        largest = max(largest, abs(row[j]))
    return largest


@kernel(parallel=False)
def _code(value, overflow):
    """A code. Of blocks so small that 1 / d is infinite: what x86 makes of a number that no integer holds."""
    return np.int8(value) if abs(value) <= np.float32(127) else np.int8(overflow)


@kernel
def _quantize(x):
    d = np.empty(x.shape[0], np.float32)
    qs = np.empty(x.shape, np.int8)
    for b in numba.prange(x.shape[0]):
        d[b] = _largest(x[b]) / np.float32(127)
        inverse = np.float32(1) / d[b] if d[b] != 0 else np.float32(0)
        for j in range(BLOCK):
            scaled = x[b, j] * inverse
            whole = np.floor(abs(scaled))
            if abs(scaled) - whole >= np.float32(0.5):
                whole += np.float32(1)
            qs[b, j] = _code(np.copysign(whole, scaled), 0)
    return d, qs


@kernel
def _quantize_activation(x):
    d = np.empty(x.shape[0], np.float32)
    qs = np.empty(x.shape, np.int8)
    for b in numba.prange(x.shape[0]):
        largest = _largest(x[b])
        d[b] = largest / np.float32(127)
        inverse = np.float32(127) / largest if largest != 0 else np.float32(0)
        for j in range(BLOCK):
            qs[b, j] = _code(np.rint(x[b, j] * inverse), -128)
    return d, qs


Q8_0 = BlockType("q8_0", 8, BLOCK, BYTES, dequantize, quantize, quantize_activation)
