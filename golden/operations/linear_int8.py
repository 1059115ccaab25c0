"""Linear layers that multiply in int8: y = s_x s_w sum_k q_k w_k + b, the sum in int32, and so exact.

q = round(x / s_x), s_x = max |x| / 127 over a row (kernels/quant/activation_codes.py); w and s_w as stored.

With zero points: y = s_x s_w sum_k (q_k - z_x) (w_k - z_w) + b, where s_x = (max(x, 0) - min(x, 0)) / 255,
z_x = round(-min(x, 0) / s_x), q = clip(round(x / s_x) + z_x, 0, 255). Signed codes, and with them their zero point,
are 128 less; the result is the same.

With a scale s_y of the result: s_y (clip(round(y / s_y) + z_y) - z_y), as the next layer takes it.

Source: ONNX operators QuantizeLinear, DynamicQuantizeLinear, MatMulInteger and QLinearMatMul.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from refsd.golden.mutations import Wrong, rows_beyond_half_the_columns
from refsd.golden.operation import Inputs, Mutant, Operation
from refsd.golden.operations.few_bits import (
    PRODUCT_INPUTS,
    ZERO_INPUTS,
    Rule,
    Weight,
    codes_of_result,
    product,
    product_bound,
    product_case,
    stored_weight,
)
from refsd.golden.operations.few_bits_bugs import (
    Parts,
    RowMutant,
    product_mutants,
    read_on,
    row_mutants,
    with_rule,
    wrong,
)
from refsd.golden.operations.zero_points import saturated_pairs, zero_mutants
from refsd.golden.recipe import Recipe
from refsd.kernels.quant.activation_codes import GRIDS, divided, less_zero, to_grid
from refsd.numerics.quantization import Quantization, Quantized, quantize, rotated


def int8_rule(params) -> Quantization:
    if params["zero_point"]:
        return Quantization("uint8", params["scales"], zero_point=True)
    return Quantization("int8", params["scales"], rotation=params["rotation"])


def _weight(inputs: Inputs) -> np.ndarray:
    codes = stored_weight(inputs).astype(np.int16)
    return codes - inputs["weight_zero"].values().astype(np.int16)[:, None] if "weight_zero" in inputs else codes


def fits_rotation(group: int, width: int) -> bool:
    """Return whether a group is a power of 4 and divides the rows."""
    power = group >= 4 and group & (group - 1) == 0 and group.bit_length() % 2 == 1
    return power and width % group == 0


def _fits(shapes, params) -> bool:
    group = params["rotation"]
    if (group and params["zero_point"]) or (
        "x_zero" in shapes and not (params["zero_point"] and "x_scale" in shapes)
    ):
        return False
    if "y_zero" in shapes and "y_scale" not in shapes:
        return False
    return params["scales"] in ("row", "tensor") and (not group or fits_rotation(group, shapes["x"][-1]))


def _rotated_after(parts: Parts) -> np.ndarray:
    plain = with_rotation(parts, 0)
    q = parts.quantized(plain)
    return parts.result(Quantized(rotated(q.values, parts.how.rotation), q.scale))


def with_rotation(parts: Parts, group: int) -> Quantization:
    return replace(parts.how, rotation=group)


def _other_groups(parts: Parts) -> np.ndarray | None:
    group = parts.how.rotation // 4
    return parts.result(parts.quantized(with_rotation(parts, group))) if group >= 4 else None


def _sylvester(parts: Parts) -> np.ndarray:
    """Rotated by Sylvester's Hadamard matrix, [1 1; 1 -1] multiplied with itself."""
    group = parts.how.rotation
    matrix = np.ones((1, 1))
    while len(matrix) < group:
        matrix = np.kron(matrix, [[1, 1], [1, -1]])
    x = parts.x.reshape(*parts.x.shape[:-1], -1, group) @ (matrix / np.sqrt(group)).astype(np.float32)
    return parts.result(quantize(x.reshape(parts.x.shape), with_rotation(parts, 0), lambda y: y, parts.static))


def _wrapped(parts: Parts) -> np.ndarray | None:
    """Codes beyond 127 wrap, as a cast to int8 without a clip."""
    if parts.static is None or parts.how.rotation:
        return None
    q = parts.quantized()
    zero = parts.zeros(q) if parts.how.zero_point else np.float32(0)
    codes = np.rint(divided(parts.x, parts.static)).astype(np.int64) + zero.astype(np.int64)
    codes = codes.astype(np.uint8 if parts.how.zero_point else np.int8).astype(np.float32)
    return parts.result(Quantized(codes - zero, q.scale))


def _without_lowest(parts: Parts) -> np.ndarray | None:
    if parts.how.zero_point:
        return None
    q = parts.quantized()
    return parts.result(q._replace(values=np.maximum(q.values, -127)))


def saturated(parts: Parts) -> np.ndarray:
    q = parts.quantized()
    sums = np.clip(parts.sums(q), -32768, 32767)
    return parts.finished(sums * (q.scale * parts.scale))


def _scales_of_columns(parts: Parts) -> np.ndarray | None:
    """A square weight is transposed, its scales are not."""
    if parts.scale.size != parts.x.shape[-1]:
        return None
    parts.weight, parts.scale = parts.weight * parts.scale, np.ones_like(parts.scale)
    return parts.result(parts.quantized())


def _small_pairs(parts: Parts, lost_by: float) -> np.ndarray | None:
    """Each two products are added up in 16 bits, where 2 (-128) (-128) does not fit. lost_by: 65536 if it wraps"""
    if parts.how.zero_point or "weight_zero" in parts.inputs:
        return None
    q, pairs = parts.quantized(), parts.x.shape[-1] // 2 * 2
    x, w = (t.astype(np.float64) for t in (q.values, parts.weight))
    # Of signed codes only two pairs of the lowest reach 32768.
    lowest = [(t[..., :pairs:2] == -128) & (t[..., 1:pairs:2] == -128) for t in (x, w)]
    lost = lost_by * (lowest[0].astype(np.float64) @ lowest[1].astype(np.float64).T)
    return parts.finished((parts.sums(q) - lost.astype(np.float32)) * (q.scale * parts.scale))


def _other_sign(parts: Parts) -> np.ndarray:
    codes = parts.inputs["weight"].values()
    parts.weight += np.where(codes > 127, -256, 0) if codes.dtype == np.uint8 else np.where(codes < 0, 256, 0)
    return parts.result(parts.quantized())


def _by_128(parts: Parts) -> np.ndarray | None:
    return None if parts.how.zero_point else with_rule(largest=128.0)(parts)


def _saturated_pairs_128(parts: Parts) -> np.ndarray | None:
    """Signed codes of x are made unsigned, 128 higher: oneDNN on processors with AVX2 and without VNNI."""
    if parts.how.zero_point or "weight_zero" in parts.inputs:
        return None
    return saturated_pairs(parts, parts.quantized(), 128.0, parts.weight)


def _result(change: Callable[[np.ndarray, Parts], np.ndarray | None]) -> Wrong:
    """The result rounded otherwise. change: the result in steps of its scale -> other steps"""

    def wrong_result(parts: Parts) -> np.ndarray | None:
        if "y_scale" not in parts.inputs:
            return None
        q, scale = parts.quantized(), parts.inputs["y_scale"].values()
        steps = change(parts.plain(parts.sums(q) * (q.scale * parts.scale)) / scale, parts)
        return None if steps is None else (steps * scale).astype(np.float32)

    return wrong(int8_rule, wrong_result, _weight)


def _wrapped_result(steps: np.ndarray, parts: Parts) -> np.ndarray:
    lowest = codes_of_result(parts.inputs).lowest
    return (np.rint(steps) - lowest) % 256 + lowest


_OF_RESULTS: dict[str, Callable[[np.ndarray, Parts], np.ndarray | None]] = {
    "result not rounded to codes": lambda v, parts: v,
    "result's codes cut toward zero": lambda v, parts: to_grid(v, codes_of_result(parts.inputs), "zero"),
    "result's codes wrap": _wrapped_result,
    "result's zero point missing": lambda v, parts: (
        to_grid(v, GRIDS["uint8"]) if "y_zero" in parts.inputs else None
    ),
    "result's zero point that of the activations": lambda v, parts: (
        to_grid(v, less_zero(GRIDS["uint8"], float(parts.zero[0]))) if parts.zero is not None else None
    ),
    "result's lowest code -127, not -128": lambda v, parts: (
        None if "y_zero" in parts.inputs else to_grid(v, GRIDS["int8"]).clip(-127)
    ),
}


def int8_mutants(rule: Rule, weight_of: Weight = stored_weight, given: bool = True) -> tuple[Mutant[Wrong], ...]:
    """Return the known bugs of activations in int8, and of their rotation. given: as in product_mutants"""

    return (
        *row_mutants(rule, weight_of, given),
        Mutant("activations' scale max |x| / 128, not / 127", wrong(rule, _by_128, weight_of)),
        Mutant("sum of products saturated at 16 bits", wrong(rule, saturated, weight_of)),
        Mutant(
            "sums of two products saturate at 16 bits, the activations' codes 128 higher",
            wrong(rule, _saturated_pairs_128, weight_of),
        ),
        *rotation_mutants(rule, weight_of),
    )


def rotation_mutants(rule: Rule, weight_of: Weight = stored_weight) -> tuple[Mutant[Wrong], ...]:
    """Return the known bugs of activations that are rotated before they are rounded."""

    def rotating(change) -> Wrong:
        return wrong(rule, lambda parts: change(parts) if parts.how.rotation else None, weight_of)

    return (
        RowMutant("rotation of the activations missing", rotating(with_rule(rotation=0))),
        RowMutant("activations rounded before they are rotated", rotating(_rotated_after)),
        RowMutant("activations rotated in groups a quarter as wide", rotating(_other_groups)),
        RowMutant("activations rotated by Sylvester's Hadamard matrix", rotating(_sylvester)),
    )


def weight_in_codes(shape, per_row=True, codes=(-127.0, 255), kind="i8", weight_zero=None) -> dict[str, Recipe]:
    """codes: the weight's lowest code, and how many there are; weight_zero: the same of its zero points"""
    rows = shape[0] if per_row else 1
    weight = {
        "weight": Recipe(shape, kind, "token_ids", 0, offset=codes[0], n=codes[1]),
        "weight_scale": Recipe((rows,), data="positive", exponent=-28),
    }
    if weight_zero:
        weight["weight_zero"] = Recipe((rows,), kind, "token_ids", 0, offset=weight_zero[0], n=weight_zero[1])
    return weight


def with_result(exponent: int | None = None, zero: int | None = None) -> dict[str, Recipe]:
    """Return the scale of a result, 2^exponent, and its zero point."""
    if exponent is None:
        return {}
    scale = {"y_scale": Recipe((1,), data="constant", offset=2.0**exponent)}
    return scale if zero is None else {**scale, "y_zero": Recipe((1,), "u8", "constant", 0, offset=float(zero))}


def _case(label: str, x, out: int, **more):
    params, weight = (
        {name: more.pop(name) for name in names if name in more}
        for names in (("scales", "rotation", "zero_point"), ("per_row", "codes", "kind", "weight_zero"))
    )
    weight = weight_in_codes((out, x[-1]), **weight) | with_result(*more.pop("result", ()))
    return product_case("linear_int8", label, x, out, weight, params, **more)


SEVEN_BITS = (-64.0, 128)
# Activations and results with a given scale and zero point.
IN_CODES = {"zero_point": True, "codes": SEVEN_BITS, "bias": False, "static": -7, "zero": 97, "exponent": -15}
IN_CODES |= {"result": (-8, 131)}
UNSIGNED: dict[str, Any] = {"kind": "u8", "codes": (0.0, 256), "weight_zero": (100.0, 60)}

LINEAR_INT8 = Operation(
    "linear_int8",
    "Round activations to int8, multiply them by a matrix of int8, apply both scales, add a bias.",
    family="linear",
    inputs={**PRODUCT_INPUTS, **ZERO_INPUTS},
    output="[..., O]",
    run=product(int8_rule, _weight),
    bound=product_bound(int8_rule, _weight),
    mutants=(
        *product_mutants(int8_rule, _weight),
        *read_on(int8_rule, _weight),
        *int8_mutants(int8_rule, _weight),
        RowMutant("weight's scales of rows stand at its columns", wrong(int8_rule, _scales_of_columns, _weight)),
        RowMutant("rows from half as many as columns on not computed", rows_beyond_half_the_columns),
        Mutant("codes beyond 127 wrap", wrong(int8_rule, _wrapped, _weight)),
        Mutant("lowest code -127, not -128", wrong(int8_rule, _without_lowest, _weight)),
        Mutant(
            "weight's codes read as unsigned, or as signed where they are not",
            wrong(int8_rule, _other_sign, _weight),
        ),
        *(
            Mutant(
                f"sums of two products {how} at 16 bits: 2 (-128) (-128)",
                wrong(int8_rule, partial(_small_pairs, lost_by=lost_by), _weight),
            )
            for how, lost_by in (("wrap", 65536.0), ("saturate", 1.0))
        ),
        *zero_mutants(int8_rule, _weight),
        *(Mutant(name, _result(change)) for name, change in _OF_RESULTS.items()),
    ),
    cases=(
        _case("tokens", (77, 320), 33),
        _case("tokens-scalar", (33, 256), 40, per_row=False),
        _case("batch", (2, 9, 96), 20),
        _case("row", (1, 320), 77, bias=False),
        # No multiple of a vector or of a block.
        _case("awkward", (2, 13, 77), 33),
        _case("one-input", (7, 1), 33),
        _case("outliers", (9, 256), 20, x_data="outliers"),
        _case("square-weight", (7, 96), 96),
        # More rows than half the columns.
        _case("tall", (40, 64), 33),
        _case("rows", (20, 160), 33, x_data="rows", n=6),
        _case("one-scale-rows", (20, 160), 33, x_data="rows", n=6, scales="tensor"),
        _case("one-scale", (2, 17, 128), 40, scales="tensor"),
        _case("positive", (7, 320), 33, x_data="positive"),
        # Ties at each half, and codes beyond both ends.
        _case("given-ties", (20, 96), 33, static=1, x_data="integers", exponent=0),
        _case("given-saturated", (20, 128), 33, static=-7, x_data="bell", exponent=-15),
        # The lowest codes of both meet, in pairs.
        _case("given-lowest", (20, 130), 33, static=-7, x_data="bell", exponent=-15, codes=(-128.0, 2)),
        *(_case(f"rotated{group}", (20, 512), 33, rotation=group) for group in (16, 256)),
        _case("rotated64-outliers", (9, 320), 40, rotation=64, x_data="outliers"),
        _case("rotated16-rows", (20, 160), 33, rotation=16, x_data="rows", n=6),
        # Signed weights of 7 bits: pairs of products fit into 16 bits, as quantisers' reduce_range has them.
        _case("zero-tokens", (33, 256), 40, zero_point=True, scales="tensor", codes=SEVEN_BITS),
        _case("zero-batch", (2, 9, 77), 20, zero_point=True, codes=SEVEN_BITS, weight_zero=(-20.0, 41)),
        _case("zero-rows", (20, 160), 33, zero_point=True, x_data="rows", n=6, **UNSIGNED),
        _case(
            "zero-one-scale-rows", (20, 160), 33, zero_point=True, x_data="rows", n=6, scales="tensor", **UNSIGNED
        ),
        # All numbers far above 0.
        _case("zero-positive", (7, 320), 33, zero_point=True, x_data="positive", offset=4.0, **UNSIGNED),
        # Ties at each half, the zero point odd; codes beyond both ends.
        _case(
            *("zero-given-ties", (20, 96), 33),
            **UNSIGNED | {"zero_point": True, "static": 1, "zero": 97, "x_data": "integers", "exponent": 0},
        ),
        _case(
            *("zero-given-saturated", (20, 128), 33),
            **UNSIGNED | {"zero_point": True, "static": -7, "zero": 97, "exponent": -15, "per_row": False},
        ),
        # Results in 8 bits, some beyond both ends.
        _case("result-batch", (2, 9, 96), 20, static=-7, exponent=-15, result=(-6,)),
        _case("zero-result", (33, 128), 40, **IN_CODES),
        # The least of every row is 0. Pairs of products of unsigned and signed codes saturate at 16 bits in AVX2.
        _case(
            "zero-pairs", (9, 320), 20, zero_point=True, codes=(-128.0, 256), x_data="token_ids", exponent=-3, n=64
        ),
    ),
    params={"scales": "row", "rotation": 0, "zero_point": False},
    fits=_fits,
)

OPERATIONS = (LINEAR_INT8,)
