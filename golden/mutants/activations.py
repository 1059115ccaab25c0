"""Known bugs of activations."""

import numpy as np

from refsd.golden.mutants.mutant import (
    Mutant,
    Wrong,
    answer,
    other_input,
    other_op,
    to_float16,
)
from refsd.golden.tensor import stored


def gate_times_gelu_of_value(op, inputs, params):
    value, gate = np.split(inputs["x"].values(), 2, axis=-1)
    return answer(op, {"x": stored(np.concatenate([gate, value], axis=-1))}, params)


def gated_by(activation: str) -> Wrong:
    def wrong(op, inputs, params):
        value, gate = np.split(inputs["x"].values(), 2, axis=-1)
        return value * answer(activation, {"x": stored(np.ascontiguousarray(gate))}, {})

    return wrong


def sigmoid_gelu(x: np.ndarray, a: float) -> np.ndarray:
    return x / (1 + np.exp(np.float32(-a) * x))


MUTANTS: dict[str, tuple[Mutant, ...]] = {
    "silu": (Mutant("x sigmoid(1.702 x)", other_op("quick_gelu")), Mutant("gelu", other_op("gelu"))),
    "gelu": (
        Mutant("tanh for erf", other_op("gelu_tanh")),
        Mutant("quick GELU for erf", other_op("quick_gelu")),
        Mutant("input through float16", other_input("x", to_float16)),
    ),
    "gelu_tanh": (
        Mutant("erf for tanh", other_op("gelu")),
        Mutant("quick GELU for tanh", other_op("quick_gelu")),
        Mutant("input through float16", other_input("x", to_float16)),
    ),
    "quick_gelu": (
        Mutant("SiLU", other_op("silu")),
        Mutant("erf GELU", other_op("gelu")),
        Mutant("1.7 for 1.702", lambda op, i, p: sigmoid_gelu(i["x"].values(), 1.7)),
    ),
    "geglu": (
        Mutant("halves in the wrong order", gate_times_gelu_of_value),
        Mutant("tanh for erf", gated_by("gelu_tanh")),
        Mutant("SiLU for GELU", gated_by("silu")),
    ),
}
