"""Activations where they bend, and far out where one kind of GELU differs from another."""

from refsd.golden.case import Case
from refsd.golden.recipe import Recipe

_ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "quick_gelu")

CASES = [
    *(Case(f"{op}/f32/bend-x33x77", op, {"x": Recipe((33, 77), exponent=-14)}) for op in _ACTIVATIONS),
    *(Case(f"{op}/f32/wide-x2x320", op, {"x": Recipe((2, 320), exponent=-11)}) for op in _ACTIVATIONS),
    Case("geglu/f32/x2x33x154", "geglu", {"x": Recipe((2, 33, 154), exponent=-14)}),
    Case("geglu/f32/x5x640", "geglu", {"x": Recipe((5, 640))}),
]
