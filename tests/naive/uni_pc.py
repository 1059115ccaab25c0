"""UniPC's weights with a general solver of linear systems, and phi functions by their series."""

from math import factorial

import numpy as np


def phi(k, z):
    """sum_i z^i / (i + k)!"""
    return sum(z**i / factorial(i + k) for i in range(60))


def weights(times, end, size, ahead):
    """Of x, of the values at times (the first: the start of the step), and with ahead 1 of the value at its end."""
    h = end - times[0]
    w = np.zeros(1 + len(times) + ahead)
    r = (np.array([*times[1:], *[end] * ahead]) - times[0]) / h
    # sum_k r_k^j rho_k = h phi_{j+2}(-h) (j + 1)! / B
    b = [-h * phi(j + 2, -h) * factorial(j + 1) / size for j in range(len(r))]
    rho = np.array([0.5]) if len(r) == 1 else np.linalg.solve(np.vander(r, increasing=True).T, b)
    w[0], w[1] = np.exp(-h), h * phi(1, -h) + size * (rho / r).sum()
    w[2:] = -size * rho / r
    return w
