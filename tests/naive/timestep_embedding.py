"""The sinusoidal embedding as powers of a complex rotation."""

import numpy as np


def timestep_embedding(t, dim, max_period):
    half = dim // 2
    turn = np.exp(1j * np.outer(t, [max_period ** (-j / half) for j in range(half)]))
    return np.hstack([turn.real, turn.imag, np.zeros((len(t), dim % 2))])
