"""Gates by SiLU through scipy's logistic function."""

import numpy as np
from scipy.special import expit


def swiglu(x):
    gate, value = np.split(x, 2, axis=-1)
    return swiglu_split(gate, value)


def swiglu_second_gates(x):
    value, gate = np.split(x, 2, axis=-1)
    return swiglu_split(gate, value)


def swiglu_split(gate, value):
    return np.prod([gate, expit(gate), value], axis=0)


def swiglu_oai(gate, value, alpha, limit):
    gate, value = np.minimum(gate, limit), np.clip(value, -limit, limit)
    return gate * expit(alpha * gate) * (value + 1)
