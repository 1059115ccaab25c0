"""Activations."""

import numpy as np

from refsd.golden.operations.operation import ROWS, Operation, entry, values


def _silu(a, inputs, params):
    return a.silu(values(a, inputs["x"]))


def _gelu(a, inputs, params):
    return a.gelu(values(a, inputs["x"]))


def _gelu_tanh(a, inputs, params):
    return a.gelu(values(a, inputs["x"]), "tanh")


def _quick_gelu(a, inputs, params):
    return a.quick_gelu(values(a, inputs["x"]))


def _geglu(a, inputs, params):
    value, gate = np.split(values(a, inputs["x"]), 2, axis=-1)
    return value * a.gelu(gate)


OPERATIONS: dict[str, Operation] = {
    "silu": entry(_silu, "x * sigmoid(x)", {"x": "[...]"}, "[...]"),
    "gelu": entry(_gelu, "x * Phi(x), Phi by erf", {"x": "[...]"}, "[...]"),
    "gelu_tanh": entry(_gelu_tanh, "GELU by its tanh approximation", {"x": "[...]"}, "[...]"),
    "quick_gelu": entry(_quick_gelu, "x * sigmoid(1.702 x)", {"x": "[...]"}, "[...]"),
    "geglu": entry(
        _geglu,
        "The first half of the last axis times GELU (erf) of the second half.",
        {"x": "[..., 2*D]"},
        ROWS,
    ),
}
