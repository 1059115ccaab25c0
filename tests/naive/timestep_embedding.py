"""The sinusoidal embedding as powers of a complex rotation."""

import numpy as np


def timestep_embedding(t, dim, max_period, freq_shift=0.0, scale=1.0):
    half = dim // 2
    turn = np.exp(1j * scale * np.outer(t, [max_period ** (-j / (half - freq_shift)) for j in range(half)]))
    return np.hstack([turn.real, turn.imag, np.zeros((len(t), dim % 2))])
