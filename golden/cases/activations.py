"""Activations where they bend, and far out where one kind of GELU differs from another."""

from refsd.golden.case import Case
from refsd.golden.recipe import Recipe

_ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "quick_gelu", "sigmoid", "tanh", "relu", "leaky_relu")
_PAIR = {"gate": Recipe((2, 33, 77), exponent=-13), "value": Recipe((2, 33, 77), exponent=-13)}

CASES = [
    *(Case(f"{op}/f32/bend-x33x77", op, {"x": Recipe((33, 77), exponent=-14)}) for op in _ACTIVATIONS),
    *(Case(f"{op}/f32/wide-x2x320", op, {"x": Recipe((2, 320), exponent=-11)}) for op in _ACTIVATIONS),
    Case("leaky_relu/f32/shallow-x7x20", "leaky_relu", {"x": Recipe((7, 20))}, {"slope": 0.01}),
    Case("geglu/f32/x2x33x154", "geglu", {"x": Recipe((2, 33, 154), exponent=-14)}),
    Case("geglu/f32/x5x640", "geglu", {"x": Recipe((5, 640))}),
    Case("swiglu/f32/x2x33x154", "swiglu", {"x": Recipe((2, 33, 154), exponent=-14)}),
    Case("swiglu/f32/second-x5x640", "swiglu", {"x": Recipe((5, 640))}, {"second_gates": True}),
    Case("swiglu_oai/f32/x2x33x77", "swiglu_oai", _PAIR),
    Case("swiglu_oai/f32/tight-x2x33x77", "swiglu_oai", _PAIR, {"alpha": 1.25, "limit": 2.0}),
]
