"""What UniPC's predictor and corrector weigh x and the values of denoised with, in every step of a schedule."""

import numpy as np

from refsd.kernels._jit import kernel


@kernel(parallel=False, inline=False)
def uni_pc_weights(times, used, sizes, ahead, order):
    """Solve each step's Vandermonde system, and gather the differences of values by value.

        x' = e^-h x + (1 - e^-h) m_0 - B sum_k rho_k (m_k - m_0) / r_k,  r_k = (times_(i-k) - times_i) / h
        sum_k r_k^j rho_k = -h (j + 1)! phi_(j+2)(-h) / B,  j = 0, 1, ...,  phi_j(z) = sum_i z^i / (i + j)!

    times: [steps + 1] float64, -ln sigma; h = times_(i+1) - times_i
    used:  [steps] int64, how many values m_0, m_1, ... a step has, at most `order`
    sizes: [steps] float64, B(h)
    ahead: 1: the value at the step's end, r = 1, is known too: a corrector; 0: a predictor
    -> w: [steps, order + 2] float64: of x, of m_0 .. m_(order-1), and of the value at the end; else 0

    A system of one unknown is not solved: its rho is 1/2.
    Source: Zhao et al. 2023 (UniPC), theorem 3.1 and algorithms 5 to 8; Bjorck & Pereyra 1970.
    """
    w, r, rho = np.zeros((len(used), order + 2)), np.empty(order + 1), np.empty(order + 1)
    for i in range(len(used)):
        h, n = times[i + 1] - times[i], used[i] - 1 + ahead
        for k in range(used[i] - 1):
            r[k] = (times[i - 1 - k] - times[i]) / h
        if ahead:
            r[n - 1] = 1.0
        phi, factorial = np.expm1(-h) / -h - 1, 1.0
        for k in range(n):
            rho[k] = phi * factorial / sizes[i]
            factorial *= k + 2
            phi = phi / -h - 1 / factorial
        if n == 1:
            rho[0] = 0.5
        else:
            _solve(r, rho, n)
        w[i, 0], w[i, 1] = np.exp(-h), -np.expm1(-h)
        for k in range(n):
            difference = -sizes[i] * rho[k] / r[k]
            w[i, order + 1 if ahead and k == n - 1 else 2 + k] = difference
            w[i, 1] -= difference
    return w


@kernel(parallel=False)
def _solve(r, rho, n):
    """sum_k r_k^j rho_k = b_j, j < n; rho holds b, and then the answer."""
    for k in range(n - 1):
        for i in range(n - 1, k, -1):
            rho[i] -= r[k] * rho[i - 1]
    for k in range(n - 2, -1, -1):
        for i in range(k + 1, n):
            rho[i] /= r[i] - r[i - k - 1]
        for i in range(k, n - 1):
            rho[i] -= rho[i + 1]
