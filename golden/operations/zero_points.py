"""Known bugs of zero points, the codes that 0 has, in products of integers."""

from collections.abc import Callable

import numpy as np

from refsd.golden.mutations import Wrong, other_input
from refsd.golden.operation import Mutant
from refsd.golden.operations.few_bits import Rule, Weight
from refsd.golden.operations.few_bits_bugs import Parts, RowMutant, with_rule, wrong
from refsd.kernels.quant.activation_codes import divided, less_zero, to_grid, zero_point
from refsd.numerics.quantization import Quantized

# The steps, the right codes less their zero points, the zero points [..., 1] -> other codes less zero points, or y
Change = Callable[[Parts, Quantized, np.ndarray], np.ndarray | None]


def _not_subtracted(parts: Parts, q: Quantized, zero: np.ndarray) -> np.ndarray:
    return q.values + zero


def _of_the_row_before(parts: Parts, q: Quantized, zero: np.ndarray) -> np.ndarray | None:
    rows = zero.reshape(-1, 1)
    return q.values + zero - np.roll(rows, 1, axis=0).reshape(zero.shape) if len(rows) > 1 else None


def _rounded(rounding: str, away: float) -> Change:
    """Zero points of another rounding. away: added before it"""

    def change(parts: Parts, q: Quantized, zero: np.ndarray) -> np.ndarray | None:
        if parts.static is not None:
            return None
        other = zero_point(parts.x, parts.how.axis, q.scale, parts.how.grid, rounding, away)
        return to_grid(divided(parts.x, q.scale), less_zero(parts.how.grid, other))

    return change


def _between_codes(parts: Parts, q: Quantized, zero: np.ndarray) -> np.ndarray | None:
    """The zero point is a number between codes: 0 has none."""
    if parts.static is not None:
        return None
    least = divided(parts.x.min(axis=parts.how.axis, keepdims=True, initial=0), q.scale)
    return to_grid(divided(parts.x, q.scale) - least, parts.how.grid) + least


def _without_zero(parts: Parts, q: Quantized, zero: np.ndarray) -> np.ndarray | None:
    """The range is that of x alone, 0 in it or not."""
    least, most = (f(parts.x, axis=parts.how.axis, keepdims=True) for f in (np.min, np.max))
    if parts.static is not None or not ((least > 0) | (most < 0)).any():
        return None
    scale = (most - least) / np.float32(parts.how.reach)
    grid = less_zero(parts.how.grid, to_grid(-divided(least, scale), parts.how.grid))
    return parts.result(Quantized(to_grid(divided(parts.x, scale), grid), scale))


def _signed(parts: Parts, q: Quantized, zero: np.ndarray) -> np.ndarray:
    codes = q.values + zero
    return np.where(codes > 127, codes - 256, codes) - zero


def _before_rounding(parts: Parts, q: Quantized, zero: np.ndarray) -> np.ndarray:
    return to_grid(divided(parts.x, q.scale) + zero, parts.how.grid) - zero


def _given_ignored(parts: Parts, q: Quantized, zero: np.ndarray) -> np.ndarray | None:
    if parts.zero is None:
        return None
    parts.zero = None
    return parts.result(parts.quantized())


def _without_both(parts: Parts, q: Quantized, zero: np.ndarray) -> np.ndarray | None:
    """sum q w - z_x sum w - z_w sum q, and no K z_x z_w"""
    if "weight_zero" not in parts.inputs:
        return None
    both = parts.x.shape[-1] * zero * parts.inputs["weight_zero"].values().astype(np.float32)
    return parts.finished((parts.sums(q) - both) * (q.scale * parts.scale))


def saturated_pairs(parts: Parts, q: Quantized, above: np.ndarray | float, weight: np.ndarray) -> np.ndarray | None:
    """Add up each two products of unsigned and signed codes in 16 bits with saturation, as AVX2's vpmaddubsw.

    above: by how much the codes are above q; weight: [O, K] signed codes
    """
    codes, weight = (q.values + above).reshape(-1, parts.x.shape[-1]), weight.astype(np.float32)
    lost = np.zeros((len(codes), len(weight)), np.float32)
    for k in range(0, codes.shape[1] - 1, 2):
        pair = codes[:, k : k + 2] @ weight[:, k : k + 2].T
        lost += pair - pair.clip(-32768, 32767)
    sums = parts.sums(q) - lost.reshape(*parts.x.shape[:-1], -1)
    return parts.finished(sums * (q.scale * parts.scale)) if lost.any() else None


def _saturated_pairs(parts: Parts, q: Quantized, zero: np.ndarray) -> np.ndarray | None:
    weight = parts.inputs["weight"].values()
    return saturated_pairs(parts, q, zero, weight) if weight.dtype == np.int8 else None


_CODES: dict[str, Change] = {
    "zero point of the activations not subtracted, nor its product with the weight's sums": _not_subtracted,
    "zero point cut toward zero": _rounded("zero", 0.0),
    "zero point rounded up": _rounded("even", 0.4999),
    "zero point between two codes, so that 0 is not exact": _between_codes,
    "activations' codes read as signed": _signed,
    "zero point added before ties are rounded to even": _before_rounding,
}
_RESULTS: dict[str, Change] = {
    "range from min x to max x, 0 in it or not": _without_zero,
    "activations' given zero point ignored": _given_ignored,
    "K times both zero points left out": _without_both,
    "sums of two products of unsigned and signed codes saturate at 16 bits": _saturated_pairs,
    "activations' range / 256, not / 255": lambda parts, *_: with_rule(largest=256.0)(parts),
    "codes of int8 without a zero point": lambda parts, *_: with_rule(type="int8", zero_point=False)(parts),
}


def zero_mutants(rule: Rule, weight_of: Weight) -> tuple[Mutant[Wrong], ...]:
    """Return the known bugs of zero points, of activations and of weights."""

    def codes(change: Change) -> Change:
        def result(parts: Parts, q: Quantized, zero: np.ndarray) -> np.ndarray | None:
            values = change(parts, q, zero)
            return None if values is None else parts.result(q._replace(values=values))

        return result

    def of(change: Change) -> Wrong:
        def with_zero(parts: Parts) -> np.ndarray | None:
            if not parts.how.zero_point:
                return None
            q = parts.quantized()
            return change(parts, q, parts.zeros(q))

        return wrong(rule, with_zero, weight_of)

    changes = {**{name: codes(change) for name, change in _CODES.items()}, **_RESULTS}
    return (
        *(Mutant(name, of(change)) for name, change in changes.items()),
        RowMutant("each row has the zero point of the row before", of(codes(_of_the_row_before))),
        Mutant("weight's zero point missing", other_input("weight_zero", np.zeros_like)),
        Mutant("weight's zero point of the next row", other_input("weight_zero", lambda zero: np.roll(zero, -1))),
        Mutant(
            "weight's first zero point used for all rows",
            other_input("weight_zero", lambda zero: np.full_like(zero, zero[0])),
        ),
    )
