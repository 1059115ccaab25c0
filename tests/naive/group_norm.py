"""Group normalisation by NumPy's own mean and variance over an axis of groups."""

import numpy as np


def group_norm(x, weight, bias, num_groups, eps):
    N, C, H, W = x.shape
    x = x.astype(np.longdouble).reshape(N, num_groups, -1)
    y = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps)
    y = y.reshape(N, C, H, W) * weight[:, None, None] + bias[:, None, None]
    return y.astype(np.float64)
