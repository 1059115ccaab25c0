"""Known bugs of activations."""

from collections.abc import Callable

import numpy as np

from refsd.golden.mutants.mutant import (
    Mutant,
    Wrong,
    answer,
    other_input,
    other_op,
    other_params,
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


def exchanged_halves(x: np.ndarray) -> np.ndarray:
    first, second = np.split(x, 2, axis=-1)
    return np.concatenate([second, first], axis=-1)


def swiglu_with(activation: str) -> Wrong:
    def wrong(op, inputs, params):
        first, second = np.split(inputs["x"].values(), 2, axis=-1)
        gate, value = (second, first) if params["second_gates"] else (first, second)
        return answer(activation, {"x": stored(np.ascontiguousarray(gate))}, {}) * value

    return wrong


def oai(gate_low=None, plus=1.0, limited=True, alpha=None) -> Wrong:
    """gpt-oss's gate with a step left out or done otherwise."""

    def wrong(op, inputs, params):
        limit = params["limit"] if limited else np.inf
        g = np.clip(inputs["gate"].values(), -limit if gate_low else -np.inf, limit).astype(np.float32)
        v = np.clip(inputs["value"].values(), -limit, limit)
        return g / (1 + np.exp(-np.float32(alpha or params["alpha"]) * g)) * (v + np.float32(plus))

    return wrong


def exchanged_inputs(op, inputs, params):
    return answer(op, {"gate": inputs["value"], "value": inputs["gate"]}, params)


def function_of_x(f: Callable[[np.ndarray], np.ndarray]) -> Wrong:
    return lambda op, inputs, params: f(inputs["x"].values().astype(np.float32))


_F16 = Mutant("input through float16", other_input("x", to_float16))

MUTANTS: dict[str, tuple[Mutant, ...]] = {
    "silu": (Mutant("x sigmoid(1.702 x)", other_op("quick_gelu")), Mutant("gelu", other_op("gelu"))),
    "gelu": (
        Mutant("tanh for erf", other_op("gelu_tanh")),
        Mutant("quick GELU for erf", other_op("quick_gelu")),
        _F16,
    ),
    "gelu_tanh": (
        Mutant("erf for tanh", other_op("gelu")),
        Mutant("quick GELU for tanh", other_op("quick_gelu")),
        _F16,
    ),
    "quick_gelu": (
        Mutant("SiLU", other_op("silu")),
        Mutant("erf GELU", other_op("gelu")),
        Mutant("1.7 for 1.702", lambda op, i, p: sigmoid_gelu(i["x"].values(), 1.7)),
    ),
    "sigmoid": (
        Mutant("of 2x", function_of_x(lambda x: 1 / (1 + np.exp(-2 * x)))),
        Mutant("hard", function_of_x(lambda x: np.clip(x / 6 + np.float32(0.5), 0, 1))),
        _F16,
    ),
    "tanh": (
        Mutant("hard", function_of_x(lambda x: np.clip(x, -1, 1))),
        Mutant("of 2x", function_of_x(lambda x: np.tanh(2 * x))),
        Mutant("a rational function", function_of_x(lambda x: x * (27 + x * x) / (27 + 9 * x * x))),
        _F16,
    ),
    "relu": (
        Mutant("leaky", function_of_x(lambda x: np.where(x > 0, x, x / 100))),
        Mutant("cut at 6", function_of_x(lambda x: np.clip(x, 0, 6))),
        Mutant("absolute value", function_of_x(np.abs)),
        _F16,
    ),
    "leaky_relu": (
        Mutant("slope 0.01 always", other_params(slope=lambda s: 0.01)),
        Mutant("not leaky", other_params(slope=lambda s: 0.0)),
        _F16,
    ),
    "swiglu": (
        Mutant("halves in the wrong order", other_input("x", exchanged_halves)),
        Mutant("GELU for SiLU", swiglu_with("gelu")),
        Mutant("sigmoid for SiLU", swiglu_with("sigmoid")),
        Mutant("quick GELU for SiLU", swiglu_with("quick_gelu")),
    ),
    "swiglu_oai": (
        Mutant("one not added", oai(plus=0.0)),
        Mutant("gate without limit", oai(limited=False)),
        Mutant("gate limited below too", oai(gate_low=True)),
        Mutant("SiLU", oai(alpha=1.0)),
        Mutant("gate and value exchanged", exchanged_inputs),
    ),
    "geglu": (
        Mutant("halves in the wrong order", gate_times_gelu_of_value),
        Mutant("tanh for erf", gated_by("gelu_tanh")),
        Mutant("SiLU for GELU", gated_by("silu")),
    ),
}
