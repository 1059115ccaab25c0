"""Softmax by logarithms: exp(x - logsumexp(x)); a sink is one more column."""

import numpy as np


def softmax(x):
    with np.errstate(invalid="ignore"):
        y = np.exp(x - np.logaddexp.reduce(x, axis=-1, keepdims=True))
    return np.where(np.isneginf(x), 0.0, y)


def softmax_sinks(x, sinks):
    return softmax(np.concatenate([x, sinks[:, None]], axis=-1))[:, :-1]
