"""Winograd's matrices derived from points, and the convolution by them in exact fractions or float64.

Cook-Toom: the product of polynomials g (degree r - 1) and y (degree m - 1) is known by its values at
m + r - 2 points and at infinity. Transposed, that is a filter of r taps over m outputs:
y = A^T [(G g) * (B^T d)] (Lavin & Gray 2015, section 4.1; Blahut 2010, section 5.2).
"""

from fractions import Fraction

import numpy as np


def vandermonde(points, columns):
    """Row i: 1, p_i, p_i^2, ...; the point at infinity takes the highest power alone."""
    rows = [[Fraction(p) ** j for j in range(columns)] for p in points]
    return np.array([*rows, [Fraction(int(j == columns - 1)) for j in range(columns)]])


def inverse(matrix):
    """By Gauss-Jordan elimination, in fractions."""
    n = len(matrix)
    rows = np.concatenate([matrix, np.array([[Fraction(int(i == j)) for j in range(n)] for i in range(n)])], axis=1)
    for i in range(n):
        pivot = next(j for j in range(i, n) if rows[j, i])
        rows[[i, pivot]] = rows[[pivot, i]]
        rows[i] = rows[i] / rows[i, i]
        for j in range(n):
            if j != i:
                rows[j] = rows[j] - rows[j, i] * rows[i]
    return rows[:, n:]


def cook_toom(m, r, points):
    """A^T [m, n], G [n, r], B^T [n, n] for n = m + r - 1, in fractions; y = A^T [(G g) * (B^T d)].

    A scale may move between a row of G and the same row of B^T: here it is all in B^T.
    """
    n = m + r - 1
    return vandermonde(points, m).T, vandermonde(points, r), inverse(vandermonde(points, n)).T


POINTS = {2: (0, 1, -1), 4: (0, 1, -1, 2, -2)}


def conv2d_winograd(x, weight, bias, padding, tile):
    """Tile by tile, in the dtype of the arrays, with the matrices as derived."""
    AT, G, BT = (np.array(M, np.float64) for M in cook_toom(tile, 3, POINTS[tile]))
    top, bottom, left, right = padding
    N, _, H, W = x.shape
    P, Q = H + top + bottom - 2, W + left + right - 2
    more = (-P % tile, -Q % tile)
    x = np.pad(x, ((0, 0), (0, 0), (top, bottom + more[0]), (left, right + more[1])))
    U = np.einsum("ia,kcab,jb->kcij", G, weight, G)
    y = np.empty((N, weight.shape[0], P + more[0], Q + more[1]))
    for p in range(0, P, tile):
        for q in range(0, Q, tile):
            d = x[:, :, p : p + tile + 2, q : q + tile + 2]
            M = np.einsum("kcij,ncij->nkij", U, np.einsum("ia,ncab,jb->ncij", BT, d, BT))
            y[:, :, p : p + tile, q : q + tile] = np.einsum("ia,nkab,jb->nkij", AT, M, AT)
    return y[:, :, :P, :Q] + bias[:, None, None]
