"""Linear layers that multiply in MX formats: small floats under a power of two every 32, MXFP8 and MXFP4."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from refsd.golden.case import Case
from refsd.golden.mutations import Wrong, other_input
from refsd.golden.operation import Inputs, Mutant, Operation, Params
from refsd.golden.operations.block_scales_of_weights import codes_of_pairs, scale_mutants, scaled_blocks, swapped
from refsd.golden.operations.few_bits import Weight, product, product_bound, product_case
from refsd.golden.operations.few_bits_bugs import (
    Parts,
    product_mutants,
    read_on,
    with_block_scales,
    with_rule,
    wrong,
)
from refsd.golden.recipe import Recipe
from refsd.kernels.quant.activation_codes import divided
from refsd.kernels.quant.grouped import TABLES
from refsd.numerics.quantization import Quantization, block_scales, in_blocks

_GROUP, _BIAS = 32, 127
# "up": as CUDA's libraries, comfy-kitchen and torchao's inference have it; "floor": the specification's.
_SCALES = {"up": "e8m0", "floor": "e8m0_floor"}
_FLOATS = {"f8_e4m3": ml_dtypes.float8_e4m3fn, "f8_e5m2": ml_dtypes.float8_e5m2}
_E2M1 = TABLES["nvfp4"]


def _rule(params: Params) -> Quantization:
    kind = params.get("activations", "f4_e2m1")
    return Quantization(kind, "none", block=_GROUP, block_scale=_SCALES[params["scales"]])


def _powers(inputs: Inputs) -> np.ndarray:
    return np.exp2(inputs["block_scale"].values().astype(np.float32) - _BIAS)


def _weight8(inputs: Inputs) -> np.ndarray:
    return scaled_blocks(inputs["weight"].values().astype(np.float32), _powers(inputs), _GROUP)


def _weight4(inputs: Inputs, table: np.ndarray = _E2M1) -> np.ndarray:
    return scaled_blocks(table[codes_of_pairs(inputs, upper_first=False)], _powers(inputs), _GROUP)


def _other_float(inputs: Inputs) -> np.ndarray:
    """Each byte read as the other of the two 8-bit floats; their NaN and infinities as 0."""
    weight = inputs["weight"]
    other = _FLOATS["f8_e5m2" if weight.type == "f8_e4m3" else "f8_e4m3"]
    values = weight.data.reshape(weight.shape).view(np.uint8).view(other).astype(np.float32)
    return scaled_blocks(np.where(np.isfinite(values), values, np.float32(0)), _powers(inputs), _GROUP)


def _of_codes(table) -> Weight:
    return lambda inputs: _weight4(inputs, np.asarray(table, np.float32))


def _as_it_is(parts: Parts) -> np.ndarray:
    return parts.result(parts.quantized())


def _nearest_power(blocks: np.ndarray, how: Quantization) -> np.ndarray:
    most = np.abs(blocks).max(axis=-1, keepdims=True) / np.float32(how.grid.largest)
    with np.errstate(divide="ignore"):
        return np.where(most == 0, most, np.exp2(np.rint(np.log2(most)))).astype(np.float32)


def _twice(blocks: np.ndarray, how: Quantization) -> np.ndarray:
    return 2 * block_scales(blocks, how, np.ones(1, np.float32))


def _half(blocks: np.ndarray, how: Quantization) -> np.ndarray:
    return block_scales(blocks, how, np.ones(1, np.float32)) / 2


def _not_clipped(parts: Parts) -> np.ndarray | None:
    """Beyond the largest number a cast to E4M3 gives NaN; a cast to E5M2 gives infinity, which no case shows."""
    blocks = in_blocks(parts.x, _GROUP)
    codes = divided(blocks, block_scales(blocks, parts.how, np.ones(1, np.float32))).astype(_FLOATS["f8_e4m3"])
    lost = np.isnan(codes.astype(np.float32)).reshape(parts.x.shape).any(axis=-1, keepdims=True)
    return np.where(lost, np.float32(np.nan), _as_it_is(parts)) if lost.any() else None


def _other_rule(parts: Parts) -> np.ndarray | None:
    return with_rule(block_scale="e8m0" if parts.how.block_scale == "e8m0_floor" else "e8m0_floor")(parts)


def _other_type(parts: Parts) -> np.ndarray | None:
    return with_rule(type="f8_e5m2" if parts.how.type == "f8_e4m3" else "f8_e4m3")(parts)


def _as_e4m3(scales: np.ndarray) -> np.ndarray:
    """The bytes read as E4M3, as NVFP4's scales are, in powers of two again."""
    values = scales.astype(np.uint8).view(_FLOATS["f8_e4m3"]).astype(np.float32)
    return np.clip(np.rint(np.log2(np.maximum(np.abs(values), 2.0**-9))) + _BIAS, 0, 254)


def _moved_bias(by: int) -> Callable[[np.ndarray], np.ndarray]:
    return lambda scales: scales.astype(np.int16) + by


_ACTIVATIONS: dict[str, Callable[[Parts], np.ndarray | None]] = {
    "activations' scales round the other way: up or down to a power of two": _other_rule,
    "activations' scales round to the nearest power of two": with_block_scales(_nearest_power),
    "activations' scales twice as large": with_block_scales(_twice),
    "activations' scales half as large": with_block_scales(_half),
    "activations in blocks of 16": with_rule(block=16),
    "activations in blocks of 64": with_rule(block=64),
    "activations under one scale for the tensor, none for blocks": with_rule(block=0, scale="tensor"),
    "activations under one scale a row, none for blocks": with_rule(block=0, scale="row"),
    "activations' scales of blocks in float32, not powers of two": with_rule(block_scale="f32"),
    "activations' scales of blocks in E4M3, not powers of two": with_rule(block_scale="f8_e4m3"),
}


def _mutants(weight_of: Weight) -> tuple[Mutant[Wrong], ...]:
    return (
        *product_mutants(_rule, weight_of, scaled=False),
        *read_on(_rule, weight_of, (64, 128)),
        *scale_mutants(one=_BIAS),
        *(Mutant(name, wrong(_rule, change, weight_of)) for name, change in _ACTIVATIONS.items()),
        Mutant(
            "weight's scales twice as large: their exponents less 126", other_input("block_scale", _moved_bias(1))
        ),
        Mutant(
            "weight's scales half as large: their exponents less 128", other_input("block_scale", _moved_bias(-1))
        ),
        Mutant("weight's scales read as E4M3", other_input("block_scale", _as_e4m3)),
    )


def _scales(x, out: int, code: int) -> Recipe:
    """Scales from 2^(code - 127) to 128 times as much."""
    return Recipe((out, x[-1] // _GROUP), "u8", "token_ids", 0, n=8, offset=float(code))


def _case8(label: str, x, out: int, *, weight_type="f8_e4m3", params: dict[str, Any] | None = None, **more):
    weight = {"weight": Recipe((out, x[-1]), weight_type, exponent=-11), "block_scale": _scales(x, out, 115)}
    return product_case("linear_mxfp8", label, x, out, weight, params or {}, **more)


def _case4(label: str, x, out: int, *, params: dict[str, Any] | None = None, **more) -> Case:
    weight = {
        "weight": Recipe((out, x[-1] // 2), "u8", "token_ids", 0, n=256),
        "block_scale": _scales(x, out, 117),
    }
    return product_case("linear_mxfp4", label, x, out, weight, params or {}, **more)


def _operation(name: str, what: str, weight: str, weight_of: Weight, mutants, cases, **more) -> Operation:
    return Operation(
        name,
        f"Round activations to {what}, multiply them by a matrix of such, add a bias.",
        family="linear",
        inputs={"x": "[..., K]", "weight": weight, "block_scale": "[O, K/32]", "bias?": "[O]"},
        output="[..., O]",
        run=product(_rule, weight_of),
        bound=product_bound(_rule, weight_of),
        mutants=(*_mutants(weight_of), *mutants),
        cases=cases,
        **more,
    )


def _fits(shapes, params: Params) -> bool:
    known = params.get("activations", "f8_e4m3") in _FLOATS and params["scales"] in _SCALES
    return known and shapes["x"][-1] % _GROUP == 0


_FLOOR = {"scales": "floor"}

LINEAR_MXFP8 = _operation(
    "linear_mxfp8",
    "MXFP8",
    "[O, K]",
    _weight8,
    (
        Mutant("NaN beyond the largest number, not limited", wrong(_rule, _not_clipped, _weight8)),
        Mutant("activations in the other 8-bit float", wrong(_rule, _other_type, _weight8)),
        Mutant("weight's bytes read as the other 8-bit float", wrong(_rule, _as_it_is, _other_float)),
    ),
    (
        _case8("tokens", (77, 320), 33),
        _case8("floor-tokens", (77, 320), 33, params=_FLOOR),
        _case8("batch", (2, 9, 96), 48),
        _case8("row", (1, 320), 80, bias=False),
        _case8("outliers", (9, 256), 32, x_data="outliers"),
        _case8("floor-outliers", (9, 256), 32, x_data="outliers", params=_FLOOR),
        _case8("rows", (20, 160), 48, x_data="rows", n=6),
        # The largest number of a block is a power of two, at which both rules and their roundings part.
        _case8("floor-powers", (20, 96), 32, x_data="integers", exponent=0, params=_FLOOR),
        _case8("wide", (20, 160), 32, x_data="wide"),
        _case8("e5m2", (17, 128), 32, params={"activations": "f8_e5m2"}),
        _case8("e5m2-weight", (17, 128), 32, weight_type="f8_e5m2"),
    ),
    params={"activations": "f8_e4m3", "scales": "up"},
    fits=_fits,
)
LINEAR_MXFP4 = _operation(
    "linear_mxfp4",
    "MXFP4",
    "[O, K/2]",
    _weight4,
    (
        Mutant("activations' ties rounded away from zero", wrong(_rule, with_rule(rounding="away"), _weight4)),
        Mutant("codes of a byte in the other order", other_input("weight", swapped)),
        Mutant("codes read as integers of 4 bits", wrong(_rule, _as_it_is, _of_codes([*range(8), *range(-8, 0)]))),
        Mutant("sign of the codes lost", wrong(_rule, _as_it_is, _of_codes([*_E2M1[:8], *_E2M1[:8]]))),
        Mutant("-0 of the codes read as NaN", wrong(_rule, _as_it_is, _of_codes([*_E2M1[:8], np.nan, *_E2M1[9:]]))),
    ),
    (
        _case4("tokens", (77, 320), 33),
        _case4("floor-tokens", (77, 320), 33, params=_FLOOR),
        _case4("batch", (2, 9, 96), 48),
        _case4("row", (1, 320), 80, bias=False),
        _case4("outliers", (9, 256), 32, x_data="outliers"),
        _case4("rows", (20, 160), 48, x_data="rows", n=6),
        _case4("floor-powers", (20, 96), 32, x_data="integers", exponent=0, params=_FLOOR),
    ),
    params={"scales": "up"},
    fits=_fits,
)

OPERATIONS = (LINEAR_MXFP8, LINEAR_MXFP4)
