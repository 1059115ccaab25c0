"""The tables of every step, each row from the integrals of its own nodes."""

import numpy as np

from . import lagrange


def _rows(integrals, nodes, ahead, used, order, *rates):
    table = np.zeros((len(used), order))
    for i, n in enumerate(used):
        last = [nodes[i + ahead - j] for j in range(n)]
        table[i, :n] = integrals(last, nodes[i], nodes[i + 1], *(rate[i] for rate in rates))
    return table


def lagrange_steps(nodes, ahead, used, order):
    return _rows(lagrange.lagrange_integrals, nodes, ahead, used, order)


def log_lagrange_steps(nodes, ahead, used, order):
    return _rows(lagrange.log_lagrange_integrals, nodes, ahead, used, order)


def exponential_lagrange_steps(nodes, ahead, used, order, rates):
    return _rows(lagrange.exponential_lagrange_integrals, nodes, ahead, used, order, rates)
