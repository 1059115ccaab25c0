"""Cosine and sine as a complex exponential, in a longer float."""

import numpy as np


def cos_sin(x):
    turn = np.exp(1j * np.asarray(x, np.longdouble))
    return turn.real, turn.imag
