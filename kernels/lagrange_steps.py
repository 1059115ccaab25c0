"""The integrals of lagrange.py for every step of a schedule in one call: a multistep method's weights."""

import numpy as np

from refsd.kernels._jit import kernel
from refsd.kernels.lagrange import exponential_lagrange_integrals, lagrange_integrals, log_lagrange_integrals


@kernel(parallel=False, inline=False)
def lagrange_steps(nodes, ahead, used, order, points, weights):
    """Integrate from each node to the next the polynomials through the last ones.

        c_ij = int_nodes_i^nodes_(i+1) prod_{k != j} (s - v_k) / (v_j - v_k) ds,  v_j = nodes_(i+ahead-j)

    nodes:           [steps + 1] float64, all different
    ahead:           0: the newest value is the one that the step starts from; 1: the one at its end
    used:            [steps] int64, values that a step has, at most `order`; 0 leaves its row empty
    points, weights: Gauss-Legendre's on -1 .. 1, exact from half as many points as values on
    -> c: [steps, order] float64, newest first; 0 from used_i on

    Source: as lagrange_integrals.
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
    """The same with polynomials in ln s, as log_lagrange_integrals has them. nodes: above 0 where they are used"""
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
    """The same under exponential_lagrange_integrals' weight. rates: [steps] float64"""
    c = np.zeros((len(used), order))
    for i in range(len(used)):
        if used[i] > 0:
            last = nodes[i + ahead + 1 - used[i] : i + ahead + 1][::-1]
            row = exponential_lagrange_integrals(last, nodes[i], nodes[i + 1], rates[i], points, weights)
            for j in range(used[i]):
                c[i, j] = row[j]
    return c
