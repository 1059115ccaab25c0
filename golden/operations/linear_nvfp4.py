"""Linear layers that multiply in NVFP4: 4-bit floats under a scale every 16, and one for the tensor."""

from collections.abc import Callable

import numpy as np

from refsd.golden.mutations import Wrong, answer, other_input
from refsd.golden.operation import Inputs, Mutant, Operation
from refsd.golden.operations.block_scales_of_weights import codes_of_pairs, scale_mutants, scaled_blocks, swapped
from refsd.golden.operations.few_bits import product, product_bound, product_case
from refsd.golden.operations.few_bits_bugs import (
    Parts,
    product_mutants,
    read_on,
    with_block_scales,
    with_rule,
    wrong,
)
from refsd.golden.recipe import Recipe
from refsd.kernels.quant.activation_codes import GRIDS, divided, scale_of, to_grid
from refsd.kernels.quant.grouped import TABLES
from refsd.numerics.profiles import NVFP4
from refsd.numerics.quantization import Quantization, in_blocks
from refsd.numerics.tensor import stored

_GROUP = 16


def _rule(params) -> Quantization:
    return NVFP4


def _weight(inputs: Inputs, table=TABLES["nvfp4"]) -> np.ndarray:
    return scaled_blocks(table[codes_of_pairs(inputs, upper_first=True)], inputs["block_scale"].values(), _GROUP)


def _changed(change) -> Wrong:
    return wrong(_rule, change, _weight)


def _other_codes(table) -> Wrong:
    """The codes read by another table."""
    values = np.asarray(table, np.float32)
    return wrong(_rule, lambda parts: parts.result(parts.quantized()), lambda inputs: _weight(inputs, values))


def _unrounded(blocks: np.ndarray, how: Quantization) -> np.ndarray:
    return scale_of(blocks, -1, how.grid.largest)


def _nan_beyond(largest: float) -> Callable[[Parts], np.ndarray | None]:
    """Cast scales of the activations' blocks as they are to a float that ends at `largest`, without infinity."""

    def change(parts: Parts) -> np.ndarray | None:
        q = parts.quantized()
        blocks = np.abs(in_blocks(parts.x, _GROUP)).max(axis=-1) / np.float32(6)
        lost = (divided(blocks, q.scale) > largest * 29 / 28).any(axis=-1, keepdims=True)
        return np.where(lost, np.float32(np.nan), parts.result(q)) if lost.any() else None

    return change


def _blocks_alone(parts: Parts) -> np.ndarray | None:
    """The scales of blocks alone; the activations' are those of the numbers as they are."""
    parts.scale, parts.static = np.ones_like(parts.scale), None
    return with_rule(scale="none")(parts)


def _one_scale(grid: str) -> Wrong:
    """The tensor's scale is multiplied into those of the weight's blocks, which are rounded again."""

    def change(op, inputs, params):
        scale = to_grid(inputs["block_scale"].values() * inputs["weight_scale"].values(), GRIDS[grid])
        ones = np.ones_like(inputs["weight_scale"].values())
        return answer(op, {**inputs, "block_scale": stored(scale), "weight_scale": stored(ones)}, params)

    return change


def _case(label: str, x, out: int, scales: int = -10, **more):
    """scales: exponent of the weight's scales of blocks"""
    weight = {
        "weight": Recipe((out, x[-1] // 2), "u8", "token_ids", 0, n=256),
        "block_scale": Recipe((out, x[-1] // _GROUP), "f8_e4m3", "positive", exponent=scales),
        "weight_scale": Recipe((1,), data="positive", exponent=-39 - scales),
    }
    return product_case("linear_nvfp4", label, x, out, weight, {}, **more)


_INTEGERS = [*range(8), *range(-8, 0)]
_POWERS = with_rule(block_scale="e8m0", scale="none")

LINEAR_NVFP4 = Operation(
    "linear_nvfp4",
    "Round activations to NVFP4, multiply them by a matrix of such, apply both tensors' scales, add a bias.",
    family="linear",
    inputs={
        "x": "[..., K]",
        "weight": "[O, K/2]",
        "block_scale": "[O, K/16]",
        "weight_scale": "[1]",
        "x_scale?": "[1]",
        "bias?": "[O]",
    },
    output="[..., O]",
    run=product(_rule, _weight),
    bound=product_bound(_rule, _weight),
    mutants=(
        *product_mutants(_rule, _weight),
        *read_on(_rule, _weight),
        *scale_mutants(one=1.0),
        Mutant("codes of a byte in the other order", other_input("weight", swapped)),
        Mutant("codes read as integers of 4 bits", _other_codes(_INTEGERS)),
        Mutant("sign of the codes lost", _other_codes([*TABLES["nvfp4"][:8], *TABLES["nvfp4"][:8]])),
        Mutant("both tensors' scales left out: those of blocks alone", _changed(_blocks_alone)),
        Mutant("activations in blocks of 32", _changed(with_rule(block=32))),
        Mutant("activations' scales of blocks powers of two", _changed(_POWERS)),
        Mutant("activations' scales of blocks in float32, not E4M3", _changed(with_block_scales(_unrounded))),
        *(
            Mutant(f"NaN where a block's scale is beyond {n}, not limited", _changed(_nan_beyond(n)))
            for n in (448, 240)
        ),
        Mutant("weight's scales of blocks times the tensor's, rounded to E4M3 again", _one_scale("f8_e4m3")),
        Mutant("weight's scales of blocks times the tensor's, rounded to E5M2", _one_scale("f8_e5m2")),
        Mutant("-0 of the codes read as NaN", _other_codes(np.where(np.arange(16) == 8, np.nan, TABLES["nvfp4"]))),
    ),
    cases=(
        _case("tokens", (77, 320), 32),
        _case("batch", (2, 9, 96), 48),
        _case("row", (1, 320), 80, bias=False),
        _case("outliers", (9, 256), 32, x_data="outliers"),
        _case("rows", (20, 160), 48, x_data="rows", n=6),
        _case("odd", (7, 48), 16),
        # Scales of blocks below 2^-6, which E4M3 holds as subnormal numbers.
        _case("small-scales", (9, 96), 32, scales=-23),
        _case("given", (20, 128), 32, static=-10),
        _case("given-saturated", (20, 128), 32, static=-12),
    ),
    fits=lambda shapes, params: shapes["x"][-1] % _GROUP == 0,
)

OPERATIONS = (LINEAR_NVFP4,)
