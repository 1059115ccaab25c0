"""Layer normalisation as a projection: P = I - 11^T/D takes the mean away."""

import numpy as np


def layer_norm(x, weight, bias, eps):
    x = x.astype(np.longdouble)
    D = x.shape[1]
    centred = x @ (np.eye(D, dtype=np.longdouble) - np.ones((D, D), np.longdouble) / D)
    rstd = 1 / np.sqrt(np.einsum("md,md->m", centred, centred) / D + eps)
    return (np.einsum("md,m,d->md", centred, rstd, weight) + bias).astype(np.float64)
