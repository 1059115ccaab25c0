"""SVDQuant's linear layer as fractions, group by group."""

from fractions import Fraction

import numpy as np
from naive.quant.activation_codes import nearest
from naive.quant.w4a8 import code


def product(x, smooth, packed, group_scale, down, up, unsigned):
    """x float64 [M, K]; the others as the operation has them -> float64 [M, O]"""
    kind, largest, shift = ("uint4", 15, Fraction(11, 64)) if unsigned else ("int4", 7, 0)
    columns = x.shape[1]
    weight = [[code(row, i, 4, columns) for i in range(columns)] for row in packed.tolist()]
    weight = [[Fraction(q - 16 if q > 7 else q) for q in row] for row in weight]
    y = np.zeros((len(x), len(weight)))
    for m, row in enumerate(x.tolist()):
        v = [(Fraction(a) + shift) / Fraction(s) for a, s in zip(row, smooth.tolist(), strict=True)]
        for g, scales in enumerate(group_scale.tolist()):
            group = v[64 * g : 64 * g + 64]
            scale = max(map(abs, group)) / largest
            q = [nearest(a / scale, kind) if scale else 0 for a in group]
            for o, s in enumerate(scales):
                sums = sum(a * b for a, b in zip(q, weight[o][64 * g : 64 * g + 64], strict=True))
                y[m, o] += float(scale * Fraction(s) * sums)
    return y + np.einsum("mk,kr,or->mo", x, down.astype(np.float64), up.astype(np.float64))
