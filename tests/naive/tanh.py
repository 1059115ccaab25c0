"""tanh from its exponentials, in a longer float."""

import numpy as np


def tanh(x):
    x = np.asarray(x, np.longdouble)
    return np.expm1(2 * x) / (np.expm1(2 * x) + 2)
