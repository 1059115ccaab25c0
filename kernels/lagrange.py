"""Integrate Lagrange polynomials, which gives the weights of past slopes in a multistep method."""

import numpy as np

from refsd.kernels._jit import kernel


@kernel(parallel=False, inline=False)
def lagrange_integrals(nodes, start, end, points, weights):
    """Integrate the polynomials that are 1 at one node and 0 at the others.

        c_j = int_start^end prod_{k != j} (s - nodes_k) / (nodes_j - nodes_k) ds

    nodes:           [n] float64, all different
    points, weights: [m] float64, Gauss-Legendre's on -1 .. 1; exact with at least n / 2 points
    -> c: [n] float64

    Source: Gauss 1814; Press et al., Numerical Recipes, section 4.6.
    """
    n, middle, half = len(nodes), (start + end) / 2, (end - start) / 2
    c = np.zeros(n)
    for j in range(n):
        for p in range(len(points)):
            product = half * weights[p]
            for k in range(n):
                if k != j:
                    product *= middle + half * points[p] - nodes[k]
            c[j] += product
    for j in range(n):
        for k in range(n):
            if k != j:
                c[j] /= nodes[j] - nodes[k]
    return c


@kernel(parallel=False, inline=False)
def log_lagrange_integrals(nodes, start, end, points, weights):
    """Integrate Lagrange polynomials in ln s.

        c_j = int_start^end prod_{k != j} (ln s - ln nodes_k) / (ln nodes_j - ln nodes_k) ds

    nodes:           [n] float64, above 0, all different; start, end above 0
    points, weights: [m] float64, Gauss-Legendre's on -1 .. 1, here in ln s
    -> c: [n] float64

    Error: 16 points are exact to rounding if start and end differ by a factor below 10^4.
    """
    n, u = len(nodes), np.log(nodes)
    middle, half = np.log(start * end) / 2, np.log(end / start) / 2
    c = np.zeros(n)
    for p in range(len(points)):
        at = middle + half * points[p]
        share = half * weights[p] * np.exp(at)
        for j in range(n):
            product = share
            for k in range(n):
                if k != j:
                    product *= at - u[k]
            c[j] += product
    for j in range(n):
        for k in range(n):
            if k != j:
                c[j] /= u[j] - u[k]
    return c


@kernel(parallel=False, inline=False)
def exponential_lagrange_integrals(nodes, start, end, rate, points, weights):
    """Integrate Lagrange polynomials with a weight that decays backwards from the end.

        c_j = int_start^end m e^(m (t - end)) prod_{k != j} (t - nodes_k) / (nodes_j - nodes_k) dt,  m = rate

    nodes:           [n] float64, all different
    points, weights: [p] float64, Gauss-Legendre's on -1 .. 1
    -> c: [n] float64, whose sum is 1 - e^(-m (end - start))

    Error: 32 points are exact to rounding if m (end - start) < 20.
    """
    n, middle, half = len(nodes), (start + end) / 2, (end - start) / 2
    c = np.zeros(n)
    for p in range(len(points)):
        at = middle + half * points[p]
        share = half * weights[p] * rate * np.exp(rate * (at - end))
        for j in range(n):
            product = share
            for k in range(n):
                if k != j:
                    product *= at - nodes[k]
            c[j] += product
    for j in range(n):
        for k in range(n):
            if k != j:
                c[j] /= nodes[j] - nodes[k]
    return c
