"""Attention in int8, a score at a time, by Python's integers and fractions."""

import math
from fractions import Fraction


def _blocks(rows, block):
    """Codes and the scale of each row, by fractions: ties away from zero."""
    codes, scales = [], []
    for first in range(0, len(rows), block):
        part = rows[first : first + block]
        scale = max(abs(x) for row in part for x in row) / 127
        for row in part:
            codes.append([_away(x / scale) if scale else 0 for x in row])
            scales.append(scale)
    return codes, scales


def _away(x):
    nearest = math.floor(abs(x) + Fraction(1, 2))
    return nearest if x >= 0 else -nearest


def attention_int8(q, k, v, scale, query_block, key_block, smooth):
    """q: [L, D], k: [J, D], v: [J, E], lists of one head. -> [L, E]"""
    q = [[Fraction(x) * Fraction(scale) for x in row] for row in q]
    k = [[Fraction(x) for x in row] for row in k]
    if smooth:
        means = [sum(column) / len(k) for column in zip(*k, strict=True)]
        k = [[x - mean for x, mean in zip(row, means, strict=True)] for row in k]
    (q, q_scale), (k, k_scale) = _blocks(q, query_block), _blocks(k, key_block)
    y = []
    for row, a in zip(q, q_scale, strict=True):
        scores = [
            float(sum(x * z for x, z in zip(row, key, strict=True)) * a * b)
            for key, b in zip(k, k_scale, strict=True)
        ]
        weights = [math.exp(s - max(scores)) for s in scores]
        columns = list(zip(*v, strict=True))
        y.append([math.fsum(w * x for w, x in zip(weights, c, strict=True)) / math.fsum(weights) for c in columns])
    return y
