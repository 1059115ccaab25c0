"""Expand a block type to float32."""

from refsd.golden.block_mutants import block_mutants, no_subnormal_scale, other_blocks, signed_scale
from refsd.golden.bounds import movement
from refsd.golden.case import Case
from refsd.golden.operation import Mutant, Operation, values
from refsd.golden.recipe import Recipe

_USUAL = ("q4_0", "q8_0", "q4_k", "q6_k")

_RARE = ("q4_1", "q5_0", "q5_1", "q2_k", "q3_k", "q5_k")

_GRIDS = ("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s")

_SMALL = ("iq4_nl", "iq4_xs", "tq1_0", "tq2_0", "mxfp4", "nvfp4", "q1_0", "q2_0")

_FLOAT8 = ("f8_e4m3", "f8_e5m2")


def _case(type: str, rows: int) -> Case:
    return Case(f"dequantize/{type}/r{rows}-d512", "dequantize", {"x": Recipe((rows, 512), type)})


DEQUANTIZE = Operation(
    "dequantize",
    "Expand a block type to float32.",
    family="block types",
    inputs={"x": "[..., D]"},
    output="[..., D]",
    run=lambda a, inputs, params: values(a, inputs["x"]),
    bound=movement,
    mutants=(
        *block_mutants("x"),
        Mutant("subnormal scales are 0", other_blocks("x", no_subnormal_scale)),
        Mutant("a scale's exponent read as a signed byte", other_blocks("x", signed_scale)),
    ),
    cases=(
        *(_case(t, 33) for t in (*_USUAL, *_RARE)),
        # Scales that are subnormal float16 numbers.
        *(
            Case(f"dequantize/{t}/tiny-r9-d512", "dequantize", {"x": Recipe((9, 512), t, exponent=-28)})
            for t in _USUAL
        ),
        *(_case(t, 9) for t in (*_GRIDS, *_SMALL, *_FLOAT8)),
        # Scales at the other ends of their bytes: subnormal ones, and exponents from 128 on.
        Case("dequantize/nvfp4/tiny-r9-d512", "dequantize", {"x": Recipe((9, 512), "nvfp4", exponent=-20)}),
        Case("dequantize/nvfp4/large-r9-d512", "dequantize", {"x": Recipe((9, 512), "nvfp4", exponent=-6)}),
        Case("dequantize/mxfp4/large-r9-d512", "dequantize", {"x": Recipe((9, 512), "mxfp4", exponent=-11)}),
    ),
)

OPERATIONS = (DEQUANTIZE,)
