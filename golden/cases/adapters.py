"""Adapters: ranks, scales, factors in full and in parts."""

from collections.abc import Iterable
from typing import Any

from refsd.golden.case import Case
from refsd.golden.recipe import Recipe


def _lora(type: str, x: tuple[int, ...], out: int, rank: int, alpha: float | None, kernel=(), **params) -> Case:
    """Exponents keep outputs near 1."""
    I = x[1] if kernel else x[-1]
    inputs = {
        "x": Recipe(x),
        "down": Recipe((rank, I, *kernel), type, exponent=-19),
        "up": Recipe((out, rank), type),
    }
    shape = "x".join(map(str, (*x, *kernel)))
    op = "lora_conv2d" if kernel else "lora"
    return Case(f"{op}/{type}/r{rank}-x{shape}-o{out}", op, inputs, {"alpha": alpha, **params})


def _lokr(
    type: str,
    x: tuple[int, ...],
    w1: tuple[int, int],
    w2: tuple[int, int],
    alpha: float | None,
    factored: Iterable[str] = (),
    rank: int = 4,
    kernel=(),
    **params,
) -> Case:
    parts = "-".join(factored) or "full"
    inputs = {"x": Recipe(x)}
    for name, (O, I), taps, exponent in (("w1", w1, (), -17), ("w2", w2, kernel, -17)):
        if name in parts:
            inputs |= {
                f"{name}_a": Recipe((O, rank), type),
                f"{name}_b": Recipe((rank, I, *taps), type, exponent=exponent),
            }
        else:
            inputs[name] = Recipe((O, I, *taps), type, exponent=exponent)
    shape = "x".join(map(str, (*x, *kernel)))
    op = "lokr_conv2d" if kernel else "lokr"
    name = f"{op}/{type}/{parts}{f'-r{rank}' if factored else ''}-x{shape}-o{w1[0]}x{w2[0]}"
    return Case(name, op, inputs, {"alpha": alpha, **params})


_SIDES: dict[str, Any] = {"padding": [1, 0, 2, 1]}
_W1, _W2, _BOTH = ("w1",), ("w2",), ("w1", "w2")

CASES = [
    _lora("f32", (2, 33, 77), 20, 4, 3.0),
    _lora("f16", (2, 33, 96), 20, 8, 3.0),
    _lora("f32", (2, 9, 77), 33, 1, 0.5),
    _lora("f32", (2, 5, 77), 6, 3, None),
    _lora("f32", (2, 33, 9, 7), 20, 4, 3.0, (3, 3), **_SIDES),
    _lora("f16", (2, 32, 8, 6), 20, 8, 3.0, (3, 3), stride=2, **_SIDES),
    _lora("f32", (2, 33, 5, 4), 12, 1, 0.5, (1, 1)),
    _lokr("f32", (2, 33, 77), (4, 7), (6, 11), 3.0),
    _lokr("f16", (2, 9, 96), (4, 6), (5, 16), None),
    _lokr("f32", (2, 33, 77), (4, 7), (6, 11), 3.0, _W2),
    _lokr("f32", (2, 33, 77), (5, 7), (6, 11), 3.0, _W1),
    _lokr("f16", (2, 9, 96), (4, 6), (5, 16), 3.0, _BOTH),
    _lokr("f32", (2, 9, 77), (4, 7), (6, 11), 3.0, _W2, rank=1),
    _lokr("f32", (2, 9, 77), (4, 7), (6, 11), 3.0, _W1, rank=1),
    _lokr("f32", (2, 28, 9, 7), (3, 4), (5, 7), 3.0, kernel=(3, 3), **_SIDES),
    _lokr("f16", (2, 24, 8, 6), (3, 4), (5, 6), 3.0, kernel=(3, 3), stride=2, **_SIDES),
    _lokr("f32", (2, 28, 9, 7), (3, 4), (5, 7), 3.0, _W2, kernel=(3, 3), **_SIDES),
    _lokr("f32", (2, 28, 9, 7), (3, 4), (5, 7), 3.0, _BOTH, kernel=(3, 2), **_SIDES),
    _lokr("f32", (2, 28, 5, 4), (3, 4), (5, 7), 3.0, _W2, rank=1, kernel=(3, 3), **_SIDES),
]
