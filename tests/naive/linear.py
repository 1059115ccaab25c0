"""The linear layer as a sum of outer products."""

import numpy as np


def linear(x, weight, bias):
    y = sum(np.multiply.outer(x[..., k], weight[:, k]) for k in range(x.shape[-1]))
    return y + bias
