"""Rectifiers by absolute values."""

import numpy as np


def relu(x):
    return (x + np.abs(x)) / 2


def leaky_relu(x, slope):
    return (1 + slope) / 2 * x + (1 - slope) / 2 * np.abs(x)
