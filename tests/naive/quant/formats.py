"""Every block format as positions of bits in a block, and its formula in float64."""

import sys

import numpy as np
from naive.quant import few_bits, iq
from naive.quant.bits import I, J, affine, half, nibbles, number, run, signed8


def k_scales(bits, first):
    """Scales and minimums of Q4_K and Q5_K, whose 12 bytes start at byte `first`. -> [n, 8], [n, 8]"""
    low, high = np.arange(4), np.arange(4)
    at = lambda byte, bit=0: 8 * (first + byte) + bit
    scales = [run(at(low), 6), np.concatenate([run(at(8 + high), 4), run(at(high, 6), 2)])]
    minimums = [run(at(4 + low), 6), np.concatenate([run(at(8 + high, 4), 4), run(at(4 + high, 6), 2)])]
    return tuple(np.concatenate([number(bits, p) for p in six], axis=1) for six in (scales, minimums))


def q4_0(bits):
    return affine(half(bits, 0), 1, number(bits, nibbles(2)) - 8)


def q4_1(bits):
    return affine(half(bits, 0), 1, number(bits, nibbles(4)), -half(bits, 2), 1)


def q5_0(bits):
    return affine(half(bits, 0), 1, number(bits, np.concatenate([nibbles(6), run(8 * 2 + J, 1)])) - 16)


def q5_1(bits):
    q = number(bits, np.concatenate([nibbles(8), run(8 * 4 + J, 1)]))
    return affine(half(bits, 0), 1, q, -half(bits, 2), 1)


def q2_k(bits):
    G = np.arange(16)
    q = number(bits, run(8 * (16 + 32 * (I // 128) + I % 32) + 2 * (I % 128 // 32), 2))
    scale, minimum = number(bits, run(8 * G, 4)), number(bits, run(8 * G + 4, 4))
    return affine(half(bits, 80), scale, q, half(bits, 82), minimum)


def q3_k(bits):
    G = np.arange(16)
    low = run(8 * (32 + 32 * (I // 128) + I % 32) + 2 * (I % 128 // 32), 2)
    q = number(bits, np.concatenate([low, run(8 * (I % 32) + I // 32, 1)])) - 4
    scale = np.concatenate([run(8 * (96 + G % 8) + 4 * (G // 8), 4), run(8 * (104 + G % 4) + 2 * (G // 4), 2)])
    return affine(half(bits, 108), number(bits, scale) - 32, q)


def q5_k(bits):
    scale, minimum = k_scales(bits, 4)
    low = run(8 * (48 + 32 * (I // 64) + I % 32) + 4 * (I // 32 % 2), 4)
    q = number(bits, np.concatenate([low, run(8 * (16 + I % 32) + I // 32, 1)]))
    return affine(half(bits, 0), scale, q, half(bits, 2), minimum)


def q8_0(bits):
    return affine(half(bits, 0), 1, signed8(number(bits, run(8 * (2 + J), 8))))


def q8_1(bits):
    return affine(half(bits, 0), 1, signed8(number(bits, run(8 * (4 + J), 8))))


def q4_k(bits):
    scale, minimum = k_scales(bits, 4)
    q = number(bits, run(8 * (16 + 32 * (I // 64) + I % 32) + 4 * (I // 32 % 2), 4))
    return affine(half(bits, 0), scale, q, half(bits, 2), minimum)


def q6_k(bits):
    low = run(8 * (64 * (I // 128) + I % 64) + 4 * (I % 128 // 64), 4)
    high = run(8 * (128 + 32 * (I // 128) + I % 32) + 2 * (I % 128 // 32), 2)
    scale = signed8(number(bits, run(8 * (192 + np.arange(16)), 8)))
    return affine(half(bits, 208), scale, number(bits, np.concatenate([low, high])) - 32)


def q8_k(bits):
    d = np.packbits(bits[:, :32], axis=1, bitorder="little").view("<f4").astype(np.float64)
    return affine(d, 1, signed8(number(bits, run(8 * (4 + I), 8))))


MODULES = (sys.modules[__name__], iq, few_bits)


def dequantize(name, blocks):
    """uint8 [n, bytes] -> float64 [n, block], magnitude [n, block]"""
    bits = np.unpackbits(blocks, axis=1, bitorder="little")
    with np.errstate(invalid="ignore"):
        return next(getattr(module, name) for module in MODULES if hasattr(module, name))(bits)
