"""Root-mean-square normalisation by a vector norm."""

import numpy as np


def rms_norm(x, weight, eps):
    rms2 = np.linalg.norm(x, axis=1, keepdims=True) ** 2 / x.shape[1]
    return x * (rms2 + eps) ** -0.5 @ np.diag(weight)
