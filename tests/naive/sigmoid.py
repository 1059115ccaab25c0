"""The logistic function through the logarithm of its denominator, in a longer float."""

import numpy as np


def sigmoid(x):
    return np.exp(-np.logaddexp(0, -np.asarray(x, np.longdouble)))
