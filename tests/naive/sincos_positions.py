"""Positions as powers of complex rotations, pixel by pixel."""

import numpy as np


def sincos_positions(dim, rows, columns):
    tokens = []
    for row in rows:
        for column in columns:
            turns = [np.exp(1j * at / 10000 ** (4 * i / dim)) for at in (column, row) for i in range(dim // 4)]
            x, y = np.split(np.array(turns), 2)
            tokens.append(np.hstack([x.imag, x.real, y.imag, y.real]))
    return np.array(tokens)
