"""Activations."""

import numpy as np

from refsd.golden.operations.operation import ROWS, Operation, entry, values
from refsd.kernels.relu import leaky_relu, relu
from refsd.kernels.sigmoid import sigmoid
from refsd.kernels.swiglu import swiglu_oai
from refsd.kernels.tanh import tanh


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


def _kernel(kernel):
    return lambda a, inputs, params: a.apply(kernel, values(a, inputs["x"]), **params)


def _swiglu(a, inputs, params):
    return a.swiglu(values(a, inputs["x"]), params["second_gates"])


def _swiglu_oai(a, inputs, params):
    return a.apply(swiglu_oai, *(values(a, inputs[name]) for name in ("gate", "value")), **params)


OPERATIONS: dict[str, Operation] = {
    "silu": entry(_silu, "x * sigmoid(x)", {"x": "[...]"}, "[...]"),
    "gelu": entry(_gelu, "x * Phi(x), Phi by erf", {"x": "[...]"}, "[...]"),
    "gelu_tanh": entry(_gelu_tanh, "GELU by its tanh approximation", {"x": "[...]"}, "[...]"),
    "quick_gelu": entry(_quick_gelu, "x * sigmoid(1.702 x)", {"x": "[...]"}, "[...]"),
    "sigmoid": entry(_kernel(sigmoid), "1 / (1 + exp(-x))", {"x": "[...]"}, "[...]"),
    "tanh": entry(_kernel(tanh), "tanh(x)", {"x": "[...]"}, "[...]"),
    "relu": entry(_kernel(relu), "max(x, 0)", {"x": "[...]"}, "[...]"),
    "leaky_relu": entry(_kernel(leaky_relu), "x, or slope * x below zero", {"x": "[...]"}, "[...]", slope=0.2),
    "swiglu": entry(
        _swiglu,
        "SiLU of the first half of the last axis times the second half; second_gates exchanges them.",
        {"x": "[..., 2*D]"},
        ROWS,
        second_gates=False,
    ),
    "swiglu_oai": entry(
        _swiglu_oai,
        "g sigmoid(alpha g) (v + 1), g = min(gate, limit), v = value clipped to -limit..limit.",
        {"gate": ROWS, "value": ROWS},
        ROWS,
        alpha=1.702,
        limit=7.0,
    ),
    "geglu": entry(
        _geglu,
        "The first half of the last axis times GELU (erf) of the second half.",
        {"x": "[..., 2*D]"},
        ROWS,
    ),
}
