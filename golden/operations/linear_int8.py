"""Linear layers that multiply in int8: y = s_x s_w sum_k q_k w_k + b, the sum in int32, and so exact.

q = round(x / s_x), s_x = max |x| / 127 over a row (kernels/quant/activation_codes.py); w and s_w as stored.
"""

import numpy as np

from refsd.golden.mutations import Wrong
from refsd.golden.operation import Mutant, Operation
from refsd.golden.operations.few_bits import (
    PRODUCT_INPUTS,
    Parts,
    Rule,
    Weight,
    product,
    product_bound,
    product_case,
    product_mutants,
    row_mutants,
    stored_weight,
    with_rule,
    wrong,
)
from refsd.golden.recipe import Recipe
from refsd.kernels.quant.activation_codes import divided
from refsd.numerics.quantization import Quantization, Quantized, quantize, rotated


def _rule(params) -> Quantization:
    return Quantization("int8", params["scales"], rotation=params["rotation"])


def fits_rotation(group: int, width: int) -> bool:
    """Return whether a group is a power of 4 and divides the rows."""
    power = group >= 4 and group & (group - 1) == 0 and group.bit_length() % 2 == 1
    return power and width % group == 0


def _fits(shapes, params) -> bool:
    group = params["rotation"]
    return params["scales"] in ("row", "tensor") and (not group or fits_rotation(group, shapes["x"][-1]))


def _rotated_after(parts: Parts) -> np.ndarray:
    plain = with_rotation(parts, 0)
    q = parts.quantized(plain)
    return parts.result(Quantized(rotated(q.values, parts.how.rotation), q.scale))


def with_rotation(parts: Parts, group: int) -> Quantization:
    return Quantization("int8", parts.how.scale, rotation=group)


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
    codes = np.rint(divided(parts.x, parts.static)).astype(np.int64).astype(np.int8).astype(np.float32)
    return parts.result(Quantized(codes, parts.static.reshape((1,) * parts.x.ndim)))


def _without_lowest(parts: Parts) -> np.ndarray:
    q = parts.quantized()
    return parts.result(q._replace(values=np.maximum(q.values, -127)))


def _saturated(parts: Parts) -> np.ndarray:
    q = parts.quantized()
    sums = np.clip(parts.sums(q), -32768, 32767)
    return parts.finished(sums * (q.scale * parts.scale))


def _wrapped_pairs(parts: Parts) -> np.ndarray:
    """Each two products are added up in 16 bits, where 2 (-128) (-128) does not fit."""
    q, pairs = parts.quantized(), parts.x.shape[-1] // 2 * 2
    x, w = (t.astype(np.float64) for t in (q.values, parts.weight))
    # Only two pairs of the lowest codes wrap: by 2^16.
    lowest = [(t[..., :pairs:2] == -128) & (t[..., 1:pairs:2] == -128) for t in (x, w)]
    lost = 65536 * (lowest[0].astype(np.float64) @ lowest[1].astype(np.float64).T)
    return parts.finished((parts.sums(q) - lost.astype(np.float32)) * (q.scale * parts.scale))


def _unsigned(parts: Parts) -> np.ndarray:
    parts.weight = np.where(parts.weight < 0, parts.weight + 256, parts.weight)
    return parts.result(parts.quantized())


def int8_mutants(rule: Rule, weight_of: Weight = stored_weight, given: bool = True) -> tuple[Mutant[Wrong], ...]:
    """Return the known bugs of activations in int8, and of their rotation. given: as in product_mutants"""

    def rotating(change) -> Wrong:
        return wrong(rule, lambda parts: change(parts) if parts.how.rotation else None, weight_of)

    return (
        *row_mutants(rule, weight_of, given),
        Mutant("activations' scale max |x| / 128, not / 127", wrong(rule, with_rule(largest=128.0), weight_of)),
        Mutant("sum of products saturated at 16 bits", wrong(rule, _saturated, weight_of)),
        Mutant("rotation of the activations missing", rotating(with_rule(rotation=0))),
        Mutant("activations rounded before they are rotated", rotating(_rotated_after)),
        Mutant("activations rotated in groups a quarter as wide", rotating(_other_groups)),
        Mutant("activations rotated by Sylvester's Hadamard matrix", rotating(_sylvester)),
    )


def _case(label: str, x, out: int, *, per_row=True, codes=(-127.0, 255), **more):
    """codes: the weight's lowest code, and how many there are"""
    params = {name: more.pop(name) for name in ("scales", "rotation") if name in more}
    weight = {
        "weight": Recipe((out, x[-1]), "i8", "token_ids", 0, offset=codes[0], n=codes[1]),
        "weight_scale": Recipe((out if per_row else 1,), data="positive", exponent=-28),
    }
    return product_case("linear_int8", label, x, out, weight, params, **more)


LINEAR_INT8 = Operation(
    "linear_int8",
    "Round activations to int8, multiply them by a matrix of int8, apply both scales, add a bias.",
    family="linear",
    inputs=PRODUCT_INPUTS,
    output="[..., O]",
    run=product(_rule),
    bound=product_bound(_rule),
    mutants=(
        *product_mutants(_rule),
        *int8_mutants(_rule),
        Mutant("codes beyond 127 wrap", wrong(_rule, _wrapped)),
        Mutant("lowest code -127, not -128", wrong(_rule, _without_lowest)),
        Mutant("weight's codes read as unsigned", wrong(_rule, _unsigned)),
        Mutant("sums of two products wrap at 16 bits: 2 (-128) (-128)", wrong(_rule, _wrapped_pairs)),
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
    ),
    params={"scales": "row", "rotation": 0},
    fits=_fits,
)

OPERATIONS = (LINEAR_INT8,)
