"""Formats of one or two bits, and 4-bit floats, as positions of bits."""

import numpy as np
from naive.quant.bits import I, affine, half, nibbles, number, run


def small_float(bits, positions, exponent, mantissa):
    """An unsigned float of few bits without infinity, mantissa lowest; the bias is half the exponent's range."""
    m, e = number(bits, positions[:mantissa]), number(bits, positions[mantissa : mantissa + exponent])
    bias = 2 ** (exponent - 1) - 1
    return np.where(e == 0, np.ldexp(m * 2.0, -mantissa), 1 + np.ldexp(m * 1.0, -mantissa)) * np.exp2(e - bias)


def e2m1(bits, positions):
    return (1 - 2.0 * number(bits, positions[3:])) * small_float(bits, positions, 2, 1)


def mxfp4(bits):
    scale = np.exp2(number(bits, run(0, 8)) - 127.0)
    return affine(scale, 1, e2m1(bits, nibbles(1)))


def nvfp4(bits):
    at = np.arange(64)
    d = small_float(bits, run(8 * np.arange(4), 7), 4, 3)
    d[number(bits, run(8 * np.arange(4), 8)) == 0x7F] = 0
    q = e2m1(bits, run(8 * (4 + 8 * (at // 16) + at % 8) + 4 * (at % 16 // 8), 4))
    return affine(1.0, d, q)


def tq1_0(bits):
    """Digit n of a byte x: floor(3 frac(3^n x / 256)), by whole numbers."""
    bytes_ = number(bits, run(8 * np.arange(52), 8))
    digits = [(bytes_ * 3**n % 256 * 3) // 256 for n in range(5)]
    order = [d[:, :32] for d in digits] + [d[:, 32:48] for d in digits] + [d[:, 48:] for d in digits[:4]]
    return affine(half(bits, 52), 1, np.concatenate(order, axis=1) - 1)


def tq2_0(bits):
    q = number(bits, run(8 * (32 * (I // 128) + I % 32) + 2 * (I % 128 // 32), 2))
    return affine(half(bits, 64), 1, q - 1)


def q1_0(bits):
    return affine(half(bits, 0), 1, 2 * number(bits, run(16 + np.arange(128), 1)) - 1)


def q2_0(bits):
    return affine(half(bits, 0), 1, number(bits, run(16 + 2 * np.arange(64), 2)) - 1)
