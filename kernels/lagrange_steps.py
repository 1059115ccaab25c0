"""The integrals of lagrange.py for every step of a schedule in one call: a multistep method's weights."""

import numpy as np

from refsd.kernels._jit import kernel
from refsd.kernels.lagrange import exponential_lagrange_integrals, lagrange_integrals, log_lagrange_integrals


@kernel(parallel=False, inline=False)
def lagrange_steps(nodes, ahead, used, order, points, weights):
    """Integrate from each node to the next, for every step, the polynomials through the last nodes.

        c_ij = int_nodes_i^nodes_(i+1) prod_{k != j} (s - v_k) / (v_j - v_k) ds,  v_j = nodes_(i+ahead-j)

    nodes:           [steps + 1] float64, all different
    ahead:           0: the newest value is at the start of the step; 1: at its end
    used:            [steps] int64, number of values in a step, at most `order`; 0 leaves its row 0
    points, weights: Gauss-Legendre's on -1 .. 1; exact with at least half as many points as values
    -> c: [steps, order] float64, newest first; 0 from used_i on

    Source: as in lagrange_integrals.
    """
    c = np.zeros((len(used), order))
    for i in range(len(used)):
        if used[i] > 0:
            last = nodes[i + ahead + 1 - used[i] : i + ahead + 1][::-1]
            row = lagrange_integrals(last, nodes[i], nodes[i + 1], points, weights)
            for j in range(used[i]):
                c[i, j] = row[j]
    return c


@kernel(parallel=False, inline=False)
def log_lagrange_steps(nodes, ahead, used, order, points, weights):
    """Do the same with polynomials in ln s, as in log_lagrange_integrals. nodes: those in use must be above 0"""
    c = np.zeros((len(used), order))
    for i in range(len(used)):
        if used[i] > 0:
            last = nodes[i + ahead + 1 - used[i] : i + ahead + 1][::-1]
            row = log_lagrange_integrals(last, nodes[i], nodes[i + 1], points, weights)
            for j in range(used[i]):
                c[i, j] = row[j]
    return c


@kernel(parallel=False, inline=False)
def exponential_lagrange_steps(nodes, ahead, used, order, rates, points, weights):
    """Do the same with the weight of exponential_lagrange_integrals. rates: [steps] float64"""
    c = np.zeros((len(used), order))
    for i in range(len(used)):
        if used[i] > 0:
            last = nodes[i + ahead + 1 - used[i] : i + ahead + 1][::-1]
            row = exponential_lagrange_integrals(last, nodes[i], nodes[i + 1], rates[i], points, weights)
            for j in range(used[i]):
                c[i, j] = row[j]
    return c
