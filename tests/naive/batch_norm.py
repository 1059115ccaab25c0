"""Batch normalisation as one matrix over the channels and one vector."""

import numpy as np


def batch_norm(x, mean, var, eps):
    slope = (var + eps) ** -0.5
    return np.einsum("cd,ndhw->nchw", np.diag(slope), x) - (mean * slope).reshape(1, -1, 1, 1)
