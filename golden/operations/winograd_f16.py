"""Bound Winograd's convolution F(2x2, 3x3) with float16 between its steps."""

import numpy as np

from refsd.golden.bounds import Run, bias_per_channel, products
from refsd.golden.rounding import Bound, Terms, gamma, largest, unit
from refsd.kernels.conv2d_winograd_f16 import A, B, G, patches, untile
from refsd.numerics.profiles import DTYPES

_SUBNORMAL = 2.0**-25  # half of float16's smallest subnormal


def winograd_f16(run: Run) -> Bound:
    """Bound F(2x2, 3x3): carry the float16 roundings between the steps through the steps that follow.

        U = G g G^T:   dU = |G| dg |G^T| + gamma(6) |G||g||G^T| + u16 |U|;   V = B^T d B likewise
        M = sum_c U V: dM = dU |V| + |U| dV + dU dV + gamma(C + 1) (|U| + dU)(|V| + dV) + u16 |M|
        Y = A^T M A:   dY = |A^T| dM |A| + gamma(6) |A^T| |M| |A|

    The transforms amplify errors by the sums of |A^T| (3 in a row, 9 in a tile) and of |B^T| (4).
    """
    u, half = run.u, DTYPES["float16"]
    weight = run.inputs["weight"]
    K, C = weight.shape[:2]
    padding = tuple(run.params["padding"])

    def through(matrix, values, errors):
        """Compute matrix values matrix^T, stored in float16. -> values [16, ...], limit, square of the spread"""
        exact = matrix @ values @ matrix.T
        absolute = np.abs(matrix) @ (np.abs(values) + errors) @ np.abs(matrix.T)
        before = np.abs(matrix) @ errors @ np.abs(matrix.T) + gamma(6, u) * absolute
        stored = unit(half) * (np.abs(exact) + before) + _SUBNORMAL
        limit = np.where(np.abs(exact) + before > largest(half), np.inf, before + stored)
        square = (matrix**2) @ (errors**2) @ (matrix.T**2) / 3 + (u * absolute) ** 2 + stored**2 / 3
        return exact, limit, square

    U, dU, sU = through(G, weight, run.moved("weight", run.numerics.conv))
    d, dd = patches(run.inputs["x"], padding), patches(run.moved("x"), padding)
    V, dV, sV = through(B, d, dd)

    def sum_of(u, v):
        """Sum u v over the channels. -> [N, K, rows, columns, 4, 4]"""
        N, _, rows, columns = v.shape[:4]
        left = u.transpose(2, 3, 0, 1).reshape(16, K, C)
        right = v.transpose(4, 5, 1, 0, 2, 3).reshape(16, C, -1)
        return (left @ right).reshape(4, 4, K, N, rows, columns).transpose(3, 2, 4, 5, 0, 1)

    M = sum_of(U, V)
    aU, aV = np.abs(U), np.abs(V)
    absolute = sum_of(aU + dU, aV + dV)
    limit, spread = products(u, C, absolute, sum_of((aU + dU) ** 2, (aV + dV) ** 2), M)
    before = sum_of(dU, aV + dV) + sum_of(aU, dV) + limit
    stored = unit(half) * (np.abs(M) + before) + _SUBNORMAL
    dM = np.where(np.abs(M) + before > largest(half), np.inf, before + stored)
    sM = sum_of(sU, V**2 + sV) + sum_of(U**2, sV) + spread**2 + stored**2 / 3
    dY = np.abs(A) @ dM @ np.abs(A.T) + gamma(6, u) * (np.abs(A) @ (np.abs(M) + dM) @ np.abs(A.T))
    P, Q = run.truth.shape[2:]
    terms = Terms().add(untile(dY, P, Q), np.sqrt(untile(A**2 @ sM @ A.T**2, P, Q)))
    b, db = bias_per_channel(run)
    return run.rounded(terms.add(db).add(u * (b + np.abs(run.truth))))
