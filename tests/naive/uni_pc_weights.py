"""UniPC's weights with a general solver of linear systems, and phi functions by their series."""

from math import factorial

import numpy as np


def phi(k, z):
    """sum_i z^i / (i + k)!"""
    return sum(z**i / factorial(i + k) for i in range(60))


def uni_pc_weights(times, used, sizes, ahead, order):
    """One step at a time: [x, m_0, m_1, ..., the value at the end]."""
    table = np.zeros((len(used), order + 2))
    for i, known in enumerate(used):
        h = times[i + 1] - times[i]
        places = [*range(2, 1 + known), *[order + 1] * ahead]
        at = [*(times[i + 1 - place] for place in range(2, 1 + known)), *[times[i + 1]] * ahead]
        r = (np.array(at) - times[i]) / h
        # sum_k r_k^j rho_k = h phi_{j+2}(-h) (j + 1)! / B
        b = [-h * phi(j + 2, -h) * factorial(j + 1) / sizes[i] for j in range(len(r))]
        rho = np.array([0.5]) if len(r) == 1 else np.linalg.solve(np.vander(r, increasing=True).T, b)
        for place, weight, node in zip(places, rho, r, strict=True):
            table[i, place] -= sizes[i] * weight / node
            table[i, 1] += sizes[i] * weight / node
        table[i, 0] += np.exp(-h)
        table[i, 1] += h * phi(1, -h)
    return table
