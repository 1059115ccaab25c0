"""Linear layers that multiply in 4 bits: y = s_x s_w sum_k q_k w_k + b, both factors rotated, sums exact.

q = round(H x / s_x), s_x = max |H x| / 7 over a row; w and s_w, of each row, as stored; H: kernels/quant/convrot.

Source: comfy_kitchen 0.2.40, backends/eager/convrot_w4a4.py.
"""

from collections.abc import Callable

import numpy as np

from refsd.golden.mutations import Wrong, other_input
from refsd.golden.operation import Inputs, Mutant, Operation
from refsd.golden.operations.few_bits import product, product_bound, product_case
from refsd.golden.operations.few_bits_bugs import Parts, product_mutants, row_mutants, with_rule, wrong
from refsd.golden.operations.linear_int8 import fits_rotation, rotation_mutants, saturated
from refsd.golden.recipe import Recipe
from refsd.kernels.quant import w4a8
from refsd.numerics.quantization import Quantization


def _rule(params) -> Quantization:
    return Quantization("int4", "row", rotation=params["rotation"])


def _codes(inputs: Inputs) -> np.ndarray:
    return w4a8.unpack(inputs["weight"].values().astype(np.uint8))


def _weight(inputs: Inputs) -> np.ndarray:
    return w4a8.signed(_codes(inputs))


def _read(weight_of: Callable[[np.ndarray], np.ndarray]) -> Wrong:
    """The weight read wrongly. weight_of: codes uint8 [O, K] -> what is multiplied"""

    def change(parts: Parts) -> np.ndarray | None:
        weight = weight_of(_codes(parts.inputs)).astype(np.float32)
        if np.array_equal(weight, parts.weight):
            return None
        parts.weight = weight
        return parts.result(parts.quantized())

    return wrong(_rule, change, _weight)


def _halves(codes: np.ndarray) -> np.ndarray:
    """Lower halves of the bytes first, then the upper ones."""
    return np.concatenate([codes[:, ::2], codes[:, 1::2]], axis=1)


def _case(label: str, x, out: int, *, rotation=256, codes=(0.0, 256), **more):
    weight = {
        "weight": Recipe((out, x[-1] // 2), "u8", "token_ids", 0, offset=codes[0], n=codes[1]),
        "weight_scale": Recipe((out,), data="positive", exponent=-24),
    }
    return product_case("linear_w4a4", label, x, out, weight, {"rotation": rotation}, **more)


LINEAR_W4A4 = Operation(
    "linear_w4a4",
    "Rotate activations and round them to 4 bits, multiply them by a rotated matrix of 4 bits, apply both scales.",
    family="linear",
    inputs={"x": "[..., K]", "weight": "[O, K/2]", "weight_scale": "[O]", "bias?": "[O]"},
    output="[..., O]",
    run=product(_rule, _weight),
    bound=product_bound(_rule, _weight),
    mutants=(
        *product_mutants(_rule, _weight, given=False),
        *row_mutants(_rule, _weight, given=False),
        *rotation_mutants(_rule, _weight),
        Mutant("activations rounded to int8, not to 4 bits", wrong(_rule, with_rule(type="int8"), _weight)),
        Mutant("activations' scale max |x| / 8, not / 7", wrong(_rule, with_rule(largest=8.0), _weight)),
        Mutant("sum of products saturated at 16 bits", wrong(_rule, saturated, _weight)),
        Mutant(
            "codes of a byte in the other order", other_input("weight", lambda packed: packed << 4 | packed >> 4)
        ),
        Mutant("lower halves of a row's bytes, then the upper ones", _read(lambda q: w4a8.signed(_halves(q)))),
        Mutant("codes read as offset by 8, not as two's complement", _read(lambda q: q.astype(np.int8) - 8)),
        Mutant("codes read without a sign", _read(lambda q: q)),
        Mutant("lowest code -7, not -8", _read(lambda q: np.maximum(w4a8.signed(q), -7))),
    ),
    cases=(
        _case("tokens", (77, 256), 33),
        _case("batch", (2, 9, 512), 20),
        _case("row", (1, 256), 77, bias=False),
        _case("outliers", (9, 256), 20, x_data="outliers"),
        _case("rows", (20, 256), 33, x_data="rows", n=6),
        _case("rotated16-outliers", (9, 80), 20, rotation=16, x_data="outliers"),
        _case("rotated64", (20, 192), 33, rotation=64),
        # Sums beyond 16 bits: numbers of one size in each group, all codes of the weight 7 or 6.
        _case("long-positive", (5, 1536), 20, rotation=4, x_data="positive", codes=(0x66, 2)),
    ),
    params={"rotation": 256},
    fits=lambda shapes, params: fits_rotation(params["rotation"], shapes["x"][-1]),
)

OPERATIONS = (LINEAR_W4A4,)
