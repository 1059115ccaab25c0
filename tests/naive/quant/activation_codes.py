"""Activations in few bits: all numbers of a format listed, the nearest found by search; products in fractions."""

import bisect
import functools
from fractions import Fraction

import numpy as np


@functools.cache
def numbers(kind):
    """Every number of a format, from the least, and whether its code is even."""
    if kind.endswith(("int8", "int4")):
        first, last = {"int8": (-128, 127), "uint8": (0, 255), "int4": (-7, 7), "uint4": (0, 15)}[kind]
        return [(Fraction(i), i % 2 == 0) for i in range(first, last + 1)]
    bits, mantissa_bits, bias = {"f8_e4m3": (7, 3, 7), "f8_e5m2": (7, 2, 15), "f4_e2m1": (3, 1, 1)}[kind]
    found = []
    for code in range(2**bits):
        exponent, mantissa = code >> mantissa_bits, code % 2**mantissa_bits
        if (kind == "f8_e5m2" and exponent == 31) or (kind == "f8_e4m3" and code == 127):
            continue
        part = Fraction(mantissa, 2**mantissa_bits) + (exponent > 0)
        found.append((part * Fraction(2) ** (max(exponent, 1) - bias), code % 2 == 0))
    return [(-v, even) for v, even in reversed(found[1:])] + found


def nearest(v, kind):
    """The number of a format nearest to v; of two the one with the even code."""
    table = numbers(kind)
    i = bisect.bisect(table, v, key=lambda row: row[0])
    return min(table[max(i - 1, 0) : i + 1], key=lambda row: (abs(row[0] - v), not row[1]))[0]


def rounded_rows(x, kind, largest):
    """Each row over its own exact scale. -> numbers, scales"""
    rows, scales = [], []
    for row in x.tolist():
        scale = max(abs(Fraction(v)) for v in row) / largest
        scales.append(scale)
        rows.append([nearest(Fraction(v) / scale, kind) if scale else Fraction(0) for v in row])
    return rows, scales


def with_zero_points(x):
    """Codes from 0 to 255 of each row of x, of which 0 has one. -> codes, zero points, scales"""
    rows, zeros, scales = [], [], []
    for row in x.tolist():
        values = [Fraction(v) for v in row]
        least, most = min(0, *values), max(0, *values)
        scale = (most - least) / 255 or Fraction(1)
        zero = nearest(-least / scale, "uint8")
        # Python rounds a fraction's ties to the even number.
        rows.append([min(max(round(v / scale) + zero, 0), 255) for v in values])
        zeros.append(zero)
        scales.append(scale)
    return rows, zeros, scales


def product_with_zero_points(x, weight, weight_zero, weight_scale):
    """Expanded: sum q w - z_x sum w - z_w sum q + K z_x z_w, in whole numbers. -> float64 [M, O]"""
    y = []
    for codes, zero, scale in zip(*with_zero_points(x), strict=True):
        for line, own, s in zip(weight.tolist(), weight_zero.tolist(), weight_scale.tolist(), strict=True):
            total = sum(q * w for q, w in zip(codes, line, strict=True))
            total += len(line) * zero * own - zero * sum(line) - own * sum(codes)
            y.append(float(total * scale * Fraction(s)))
    return np.array(y).reshape(len(x), -1)


def product(x, weight, weight_scale, kind, largest):
    """y = s_x s_w sum q w, as fractions until the end. -> float64 [M, O]"""
    rows, scales = rounded_rows(x, kind, largest)
    y = [
        [
            scale * Fraction(float(s)) * sum(q * Fraction(float(w)) for q, w in zip(row, line, strict=True))
            for line, s in zip(weight, weight_scale, strict=True)
        ]
        for row, scale in zip(rows, scales, strict=True)
    ]
    return np.array(y, np.float64)


def nvfp4_rows(x):
    """Blocks of 16 under scales in E4M3, under one scale for the tensor. -> float64 [M, K], the tensor's scale"""
    scale = max(abs(Fraction(float(v))) for v in x.ravel()) / (448 * 6)
    rows = []
    for block in x.reshape(-1, 16).tolist():
        inner = nearest(max(abs(Fraction(v)) for v in block) / 6 / scale, "f8_e4m3")
        rows.append([inner * nearest(Fraction(v) / (scale * inner), "f4_e2m1") if inner else 0 for v in block])
    return np.array(rows, np.float64).reshape(x.shape), float(scale)


def mx_rows(x, kind, up):
    """Blocks of 32 under a power of two, found by search. up: the least that clips nothing; else the
    specification's, which puts the largest number in the last binade. -> float64 [M, K]"""
    largest = numbers(kind)[-1][0]
    rows = []
    for block in x.reshape(-1, 32).tolist():
        most = max(abs(Fraction(v)) for v in block)
        power = Fraction(2) ** -40
        while most and (most > largest * power if up else most >= 2 * power * _binade(largest)):
            power *= 2
        rows.append([power * nearest(Fraction(v) / power, kind) for v in block])
    return np.array(rows, np.float64).reshape(x.shape)


def _binade(v):
    """The largest power of two that is not above v."""
    power = Fraction(1)
    while 2 * power <= v:
        power *= 2
    return power


def nvfp4_weight(packed, block_scale):
    """Two codes a byte, the first in the upper half: sign, 2 bits of exponent, 1 of mantissa. -> float64 [O, K]"""
    table = numbers("f4_e2m1")[7:]
    codes = [[nibble for byte in row for nibble in divmod(byte, 16)] for row in packed.tolist()]
    values = np.array([[(1 - code // 8 * 2) * float(table[code % 8][0]) for code in row] for row in codes])
    return np.einsum("obk,ob->obk", values.reshape(*block_scale.shape, 16), block_scale).reshape(values.shape)
