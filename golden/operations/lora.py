"""LoRA, applied factor by factor."""

import numpy as np

from refsd.golden.bounds import Run
from refsd.golden.case import Case
from refsd.golden.mutations import BATCH, F16_INPUT, SIDES_SWAPPED, other_input, turned
from refsd.golden.operation import IMAGE, Mutant, Operation
from refsd.golden.operations.adapter import (
    SCALES,
    SIDES,
    Factors,
    columns_count,
    delta_bound,
    on_conv2d,
    on_linear,
    read_as_transposed,
)
from refsd.golden.operations.convolution import window_fits
from refsd.golden.recipe import Recipe
from refsd.kernels.adapters import LoRA
from refsd.kernels.adapters.scales import alpha_over_rank, rank_sdcpp
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT64


def lora_scale(a, inputs, params) -> float:
    rank, columns = inputs["down"].shape[:2]
    counted = rank_sdcpp(rank, columns) if columns_count(a) else rank
    return alpha_over_rank(params["alpha"], counted or rank)


def _lora_of(a, inputs, params) -> LoRA:
    return LoRA(a.expand(inputs["down"]), a.expand(inputs["up"]), None, lora_scale(a, inputs, params))


def _lora_delta(f: Factors) -> np.ndarray:
    return np.tensordot(f["up"], f["down"], 1)


def _bound_scale(run: Run) -> float:
    return lora_scale(Arithmetic(FLOAT64), run.inputs, run.params)


_MUTANTS = (*SCALES, Mutant("up read as its transpose", read_as_transposed("up")), BATCH, F16_INPUT)


def _case(type: str, x: tuple[int, ...], out: int, rank: int, alpha: float | None, kernel=(), **params) -> Case:
    """Make a case; its exponents keep outputs near 1."""
    I = x[1] if kernel else x[-1]
    inputs = {
        "x": Recipe(x),
        "down": Recipe((rank, I, *kernel), type, exponent=-19),
        "up": Recipe((out, rank), type),
    }
    shape = "x".join(map(str, (*x, *kernel)))
    op = "lora_conv2d" if kernel else "lora"
    return Case(f"{op}/{type}/r{rank}-x{shape}-o{out}", op, inputs, {"alpha": alpha, **params})


LORA = Operation(
    "lora",
    "What LoRA adds to a linear layer: alpha / K up down x; alpha None: K.",
    family="adapters",
    inputs={"x": "[..., I]", "down": "[K, I]", "up": "[O, K]"},
    output="[..., O]",
    params={"alpha": None},
    run=on_linear(_lora_of, lambda inputs: "down"),
    bound=delta_bound(_lora_delta, _bound_scale),
    mutants=(Mutant("down read as its transpose", read_as_transposed("down")), *_MUTANTS),
    cases=(
        _case("f32", (2, 33, 77), 20, 4, 3.0),
        _case("f16", (2, 33, 96), 20, 8, 3.0),
        _case("f32", (2, 9, 77), 33, 1, 0.5),
        _case("f32", (2, 5, 77), 6, 3, None),
        # Square factors: their transposes have their shapes.
        _case("f32", (2, 5, 9), 9, 9, 3.0),
    ),
)

LORA_CONV2D = Operation(
    "lora_conv2d",
    "What LoRA adds to a convolution: down has the layer's geometry, up is 1x1.",
    family="adapters",
    inputs={"x": IMAGE, "down": "[K, C, R, S]", "up": "[O, K]"},
    output="[N, O, P, Q]",
    channel=1,
    params={"alpha": None, "stride": 1, "padding": (0, 0, 0, 0)},
    run=on_conv2d(_lora_of),
    fits=window_fits,
    bound=delta_bound(_lora_delta, _bound_scale),
    mutants=(
        Mutant("stride's two numbers exchanged", turned("stride")),
        Mutant("filter flipped", other_input("down", lambda w: w[:, :, ::-1, ::-1])),
        SIDES_SWAPPED,
        *_MUTANTS,
    ),
    cases=(
        _case("f32", (2, 33, 9, 7), 20, 4, 3.0, (3, 3), **SIDES),
        _case("f16", (2, 32, 8, 6), 20, 8, 3.0, (3, 3), stride=2, **SIDES),
        _case("f32", (2, 33, 5, 4), 12, 1, 0.5, (1, 1)),
        _case("f32", (1, 5, 9, 11), 7, 2, 1.0, (3, 3), stride=(1, 2), **SIDES),
    ),
)

OPERATIONS = (LORA, LORA_CONV2D)
