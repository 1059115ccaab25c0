"""Linear layers that multiply in E4M3 under float32 scales: of 128 activations, of 128 x 128 weights."""

from collections.abc import Callable

import numpy as np

from refsd.golden.mutations import Wrong, other_input
from refsd.golden.operation import Inputs, Mutant, Operation, Params
from refsd.golden.operations.block_scales_of_weights import transposed
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
from refsd.kernels.quant.activation_codes import divided, power_scale
from refsd.numerics.quantization import Quantization, block_scales, in_blocks
from refsd.numerics.tensor import stored

_BLOCK = 128


def _rule(params: Params) -> Quantization:
    return Quantization("f8_e4m3", "none", block=_BLOCK, block_scale="f32", quotient="wide")


def _weight(inputs: Inputs, block: int = _BLOCK) -> np.ndarray:
    codes, scales = inputs["weight"].values().astype(np.float32), inputs["block_scale"].values()
    rows, columns = (np.arange(n) // block for n in codes.shape)
    return codes * scales[rows.clip(max=len(scales) - 1)][:, columns.clip(max=scales.shape[1] - 1)]


def _next(axis: int) -> Callable[[np.ndarray], np.ndarray | None]:
    return lambda scales: np.roll(scales, -1, axis) if scales.shape[axis] > 1 else None


def _first(axis: int) -> Callable[[np.ndarray], np.ndarray | None]:
    return lambda scales: scales.take([0], axis) + 0 * scales if scales.shape[axis] > 1 else None


def _of_both(change: Callable[[np.ndarray, int], np.ndarray]) -> Wrong:
    """Multiply codes by other scales of blocks of columns, in both factors. change: scales [..., n], K -> scales"""

    def result(parts: Parts) -> np.ndarray:
        q, K = parts.quantized(), parts.x.shape[-1]
        own = block_scales(in_blocks(parts.x, _BLOCK), parts.how, np.ones(1, np.float32))[..., 0]
        times = np.repeat(divided(change(own, K), own), _BLOCK, axis=-1)[..., :K]
        return parts.result(q._replace(values=q.values * times))

    def weight(inputs: Inputs) -> np.ndarray:
        scales = change(inputs["block_scale"].values(), inputs["x"].shape[-1])
        return _weight({**inputs, "block_scale": stored(np.ascontiguousarray(scales, np.float32))})

    return wrong(_rule, result, weight)


def _case(label: str, x, out: int, **more):
    weight = {
        "weight": Recipe((out, x[-1]), "f8_e4m3", exponent=-11),
        "block_scale": Recipe((-(-out // _BLOCK), -(-x[-1] // _BLOCK)), data="positive", exponent=-25),
    }
    return product_case("linear_fp8_blocks", label, x, out, weight, {}, **more)


_CHANGES = {
    "activations under one scale a row, none for blocks": with_rule(block=0, scale="row"),
    "activations under one scale for the tensor, none for blocks": with_rule(block=0, scale="tensor"),
    "activations in blocks of 64": with_rule(block=64),
    "activations in blocks of 32": with_rule(block=32),
    "activations in the other 8-bit float": with_rule(type="f8_e5m2"),
    "E4M3 that ends at 240, as FNUZ has it": with_rule(largest=240.0),
    "activations' scales of blocks rounded up to powers of two": with_block_scales(
        lambda blocks, how: power_scale(blocks, -1, how.grid.largest)
    ),
}
_SCALES = {
    "weight's scales inverted": lambda scales: 1 / scales,
    "weight's scales missing": np.ones_like,
    "weight's scales of blocks transposed": transposed,
    "weight's scales of the next block of columns": _next(1),
    "weight's scales of the next block of rows": _next(0),
    "weight's scales of the first block of columns for all": _first(1),
    "weight's scales of the first block of rows for all": _first(0),
}
_OF_BOTH = {
    "both factors' scales of the first block of columns for all": lambda scales, K: scales[..., :1] + 0 * scales,
    "both factors' scales of the next block of columns": lambda scales, K: np.roll(scales, -1, axis=-1),
    "the last block of columns, which is not whole, without scales of both factors": lambda scales, K: np.where(
        np.arange(scales.shape[-1]) < K // _BLOCK, scales, np.float32(1)
    ),
}

LINEAR_FP8_BLOCKS = Operation(
    "linear_fp8_blocks",
    "Round activations to E4M3 in blocks of 128, multiply them by a matrix of such in squares of 128, add a bias.",
    family="linear",
    inputs={"x": "[..., K]", "weight": "[O, K]", "block_scale": "[P, Q]", "bias?": "[O]"},
    output="[..., O]",
    run=product(_rule, _weight),
    bound=product_bound(_rule, _weight),
    mutants=(
        *product_mutants(_rule, _weight, scaled=False),
        *read_on(_rule, _weight),
        *(Mutant(name, wrong(_rule, change, _weight)) for name, change in _CHANGES.items()),
        *(Mutant(name, other_input("block_scale", change)) for name, change in _SCALES.items()),
        *(Mutant(name, _of_both(change)) for name, change in _OF_BOTH.items()),
        Mutant(
            "weight's scales of squares of 64",
            wrong(_rule, lambda parts: parts.result(parts.quantized()), lambda inputs: _weight(inputs, 64)),
        ),
    ),
    cases=(
        _case("tokens", (9, 384), 272),
        _case("batch", (2, 9, 256), 160),
        _case("row", (1, 384), 144, bias=False),
        _case("outliers", (6, 160), 130, x_data="outliers"),
        _case("rows", (8, 160), 132, x_data="rows", n=6),
        # Neither side is whole blocks.
        _case("awkward", (2, 7, 200), 150),
    ),
    fits=lambda shapes, params: shapes["block_scale"] == tuple(-(-n // _BLOCK) for n in shapes["weight"]),
)

OPERATIONS = (LINEAR_FP8_BLOCKS,)
