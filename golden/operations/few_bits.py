"""What the linear layers in few bits share: the reference, the bound and the known bugs."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

from refsd.golden.bounds import Run, bias_of, sums
from refsd.golden.case import Case
from refsd.golden.few_bits import moves
from refsd.golden.mutations import BATCH, F16_INPUT, NO_BIAS, other_input, widened
from refsd.golden.operation import Inputs, Mutant, Params, Wrong, optional, values
from refsd.golden.operations.linear import read_as_transposed, shifted_rows, without_tail
from refsd.golden.recipe import Recipe
from refsd.golden.rounding import Bound, Terms, gamma
from refsd.kernels.quant.activation_codes import GRIDS, Grid, divided, less_zero, to_grid
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT32, Numerics
from refsd.numerics.quantization import Quantization, Quantized, given_zero, quantize, rotated, zeros


class RowMutant(Mutant[Wrong]):
    """A known bug of rows, or of their rotation: not of a convolution that is computed by rows."""


# The parameters of a case -> how its activations are rounded.
Rule = Callable[[Params], Quantization]
# A case's tensors -> the weight's numbers, without the scale of the tensor or the row.
Weight = Callable[[Inputs], np.ndarray]


def stored_weight(inputs: Inputs) -> np.ndarray:
    return inputs["weight"].values()


def _static(inputs: Inputs) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Return the scale of x and its zero point that were measured beforehand."""
    scale, zero = (inputs[name].values() if name in inputs else None for name in ("x_scale", "x_zero"))
    return scale, zero


def _as_declared(how: Quantization, numerics: Numerics) -> Quantization:
    """A page's rounding, with quotients as the engine says that it makes codes of this type."""
    own = (one for one in numerics.activations.values() if isinstance(one, Quantization))
    quotients = {one.type: one.quotient for one in own if not one.block}
    return how if how.block else replace(how, quotient=quotients.get(how.type, how.quotient))


def product(rule: Rule, weight_of: Weight = stored_weight) -> Callable[[Arithmetic, Inputs, Params], np.ndarray]:
    """Return the reference of a page."""

    def run(a: Arithmetic, inputs: Inputs, params: Params) -> np.ndarray:
        dtype = a.numerics.compute_dtype
        weight, scale = weight_of(inputs).astype(dtype), inputs["weight_scale"].values().astype(dtype)
        x, bias = values(a, inputs["x"]), optional(a, inputs, "bias")
        how = _as_declared(rule(params), a.numerics)
        return in_codes(a.linear_quantized(x, weight, scale, bias, how, *_static(inputs)), inputs)

    return run


def product_bound(rule: Rule, weight_of: Weight = stored_weight) -> Callable[[Run], Bound]:
    """Return the bound of a page.

    y = s_x s_w sum_k q_k w_k + b: |W| dq where a code may be another, the sum's own error (none in integers), the
    scale's, four roundings, b.
    """

    def bound(run: Run) -> Bound:
        n = run.numerics
        how = _as_declared(rule(run.params), n)
        x = run.inputs["x"].astype(n.storage_dtype).astype(np.float64)
        bits = moves(x, run.moved("x"), how, n.compute, n.storage, *_static(run.stored))
        W, K = weight_of(run.stored).astype(np.float64), x.shape[-1]
        scale = np.abs(bits.scale * run.inputs["weight_scale"])
        s = np.abs(bits.values @ W.T)
        terms = Terms()
        # All rows share the error of one scale.
        terms.groups = 1 if how.scale == "tensor" and "x_scale" not in run.inputs else 0
        terms.add(scale * (bits.moved @ np.abs(W).T), scale * np.sqrt(bits.moved**2 @ (W**2).T / 3))
        if not how.integers:
            largest = np.abs(bits.values) + bits.moved
            limit, spread = sums(run, "linear", K, largest @ np.abs(W).T, largest**2 @ (W**2).T, s, how)
            terms.add(scale * limit, scale * spread)
        if how.block:  # each factor times the scale of its block and of the tensor, where an engine widens it
            terms.add(scale * gamma(4, run.u) * ((np.abs(bits.values) + bits.moved) @ np.abs(W).T))
        y = scale * s + terms.limit
        terms.add(y * (bits.relative + gamma(4, run.u)))
        b, db = bias_of(run)
        terms.add(db)
        if "bias" in run.inputs:
            terms.add(run.between(y) + run.u * (y + b))
        if "y_scale" not in run.inputs:
            return run.rounded(terms)
        plain = bits.scale * run.inputs["weight_scale"] * (bits.values @ W.T) + run.inputs.get("bias", 0.0)
        return _bound_in_codes(run, plain, run.rounded(terms).limit)

    return bound


def in_codes(y: np.ndarray, inputs: Inputs, rounding: str = "even") -> np.ndarray:
    """Round a result to the 8 bits that the next layer takes, if there is a scale for it, and back."""
    if "y_scale" not in inputs:
        return y
    scale = inputs["y_scale"].values().astype(y.dtype)
    return to_grid(divided(y, scale), codes_of_result(inputs), rounding) * scale


def codes_of_result(inputs: Inputs) -> Grid:
    return less_zero(GRIDS["uint8"], float(inputs["y_zero"].values()[0])) if "y_zero" in inputs else GRIDS["int8"]


def _bound_in_codes(run: Run, plain: np.ndarray, limit: np.ndarray) -> Bound:
    """A result beside a tie may be either of two codes. plain: it, not rounded; limit: its error"""
    scale, grid = float(run.inputs["y_scale"][0]), codes_of_result(run.stored)
    v = plain / scale
    doubt = limit / scale + gamma(3, run.u) * np.abs(v)
    moved = scale * np.max([np.abs(to_grid(v + d, grid) - to_grid(v, grid)) for d in (-doubt, doubt)], axis=0)
    return run.rounded(Terms().add(moved, moved).add(gamma(2, run.u) * np.abs(run.truth)))


# The tensors of a product with one scale for the weight, or one a row.
PRODUCT_INPUTS = {
    "x": "[..., K]",
    "weight": "[O, K]",
    "weight_scale": "[O or 1]",
    "x_scale?": "[1]",
    "bias?": "[O]",
}
ZERO_INPUTS = {"x_zero?": "[1]", "weight_zero?": "[O or 1]", "y_scale?": "[1]", "y_zero?": "[1]"}


def measured(static: int | None = None, zero: int | None = None) -> dict[str, Recipe]:
    """Return a scale of x, the power of two of this exponent, and a zero point, measured beforehand."""
    scale = {} if static is None else {"x_scale": Recipe((1,), data="constant", offset=2.0**static)}
    return scale if zero is None else {**scale, "x_zero": Recipe((1,), "u8", "constant", 0, offset=float(zero))}


def product_case(
    op: str,
    label: str,
    x: tuple[int, ...],
    out: int,
    weight: dict[str, Recipe],
    params: dict[str, Any],
    *,
    bias: bool = True,
    static: int | None = None,
    zero: int | None = None,
    x_data: str = "bell",
    **x_recipe: Any,
) -> Case:
    """Make a case. weight: its tensors; static, zero: as in `measured`"""
    inputs = {"x": Recipe(x, data=x_data, **x_recipe), **weight}
    if bias:
        inputs["bias"] = Recipe((out,))
    name = f"{op}/{label}-x{'x'.join(map(str, x))}-o{out}"
    return Case(name, op, inputs | measured(static, zero), params)


class Parts:
    """The steps of a product in float32, of which a bug replaces one."""

    def __init__(self, rule: Rule, inputs: Inputs, params: Params, weight_of: Weight = stored_weight):
        self.inputs, self.how = inputs, rule(params)
        self.a = Arithmetic(FLOAT32)
        self.x = np.asarray(inputs["x"].values(), np.float32)
        self.weight = weight_of(inputs).astype(np.float32)
        self.scale = inputs["weight_scale"].values()
        self.bias = inputs["bias"].values() if "bias" in inputs else None
        self.static, self.zero = _static(inputs)

    def quantized(self, how: Quantization | None = None) -> Quantized:
        return quantize(self.x, how or self.how, lambda y: y, self.static, self.zero)

    def zeros(self, q: Quantized) -> np.ndarray:
        """The zero points of x, [..., 1]."""
        return given_zero(self.zero, self.x) if self.static is not None else zeros(self.x, self.how, q.scale)

    def sums(self, q: Quantized) -> np.ndarray:
        return (q.values.astype(np.float64) @ self.weight.astype(np.float64).T).astype(np.float32)

    def result(self, q: Quantized) -> np.ndarray:
        return self.finished(self.sums(q) * (q.scale * self.scale))

    def plain(self, y: np.ndarray) -> np.ndarray:
        return (y if self.bias is None else y + self.bias).astype(np.float32)

    def finished(self, y: np.ndarray) -> np.ndarray:
        return in_codes(self.plain(y), self.inputs)


def wrong(rule: Rule, change: Callable[[Parts], np.ndarray | None], weight_of: Weight = stored_weight) -> Wrong:
    return lambda op, inputs, params: change(Parts(rule, inputs, params, weight_of))


def with_rule(**changes) -> Callable[[Parts], np.ndarray | None]:
    """Other fields of the Quantization; None where nothing changes."""

    def change(parts: Parts) -> np.ndarray | None:
        how = replace(parts.how, **changes)
        return None if how == parts.how else parts.result(parts.quantized(how))

    return change


def _other_sharing(parts: Parts) -> np.ndarray | None:
    if parts.static is not None or parts.how.scale == "none":
        return None
    return with_rule(scale={"row": "tensor", "tensor": "row"}[parts.how.scale])(parts)


def _scale_of_the_row_before(parts: Parts) -> np.ndarray | None:
    q = parts.quantized()
    rows = q.scale.reshape(-1, 1)
    if len(rows) < 2:
        return None
    return parts.result(q._replace(scale=np.roll(rows, 1, axis=0).reshape(q.scale.shape)))


def _divided_scale(parts: Parts) -> np.ndarray:
    q = parts.quantized()
    return parts.finished(divided(parts.sums(q) * parts.scale, q.scale))


def _scale_through(dtype) -> Callable[[Parts], np.ndarray]:
    def change(parts: Parts) -> np.ndarray:
        q = parts.quantized()
        return parts.result(q._replace(scale=q.scale.astype(dtype).astype(np.float32)))

    return change


def _scale_of_power(parts: Parts) -> np.ndarray | None:
    """Activations are divided by their scale; the product is multiplied by the next power of two."""
    if parts.static is not None or parts.how.scale == "none":
        return None
    q = parts.quantized()
    with np.errstate(divide="ignore"):
        return parts.result(q._replace(scale=np.exp2(np.ceil(np.log2(q.scale)))))


def _not_rounded(parts: Parts) -> np.ndarray:
    x = rotated(parts.x, parts.how.rotation) if parts.how.rotation else parts.x
    return parts.result(Quantized(x, np.ones((1,) * x.ndim, np.float32)))


def _of_other_largest(
    largest: Callable[[np.ndarray, int | None], np.ndarray | None],
) -> Callable[[Parts], np.ndarray | None]:
    """The scale of another largest number; what is beyond it is clipped. largest: x, axis (None: all) -> number"""

    def change(parts: Parts) -> np.ndarray | None:
        if parts.static is not None or parts.how.zero_point:
            return None
        x = rotated(parts.x, parts.how.rotation) if parts.how.rotation else parts.x
        found = largest(x, -1 if parts.how.scale == "row" else None)
        if found is None:
            return None
        scale = np.maximum(found, 1e-30) / parts.how.reach
        v = quantize(divided(x, scale), replace(parts.how, rotation=0, scale="none"), lambda y: y)
        return parts.result(Quantized(v.values, scale.astype(np.float32)))

    return change


def scale_of_the_first(*counts: int) -> dict[str, Callable[[Parts], np.ndarray | None]]:
    """One block of threads looks for the largest number of a tensor or of a row, in as many as it has."""

    def among(n: int):
        def largest(x: np.ndarray, axis: int | None) -> np.ndarray | None:
            x = x if axis == -1 else x.reshape((1,) * (x.ndim - 1) + (-1,))
            return np.abs(x[..., :n]).max(-1, keepdims=True) if x.shape[-1] > n else None

        return _of_other_largest(largest)

    return {f"activations' scale from the first {n} numbers alone": among(n) for n in counts}


def _scale_along(axis: int, fewest: int) -> Callable[[Parts], np.ndarray | None]:
    """One scale for all numbers along another axis than the last. fewest: axes that x has at the least"""

    def change(parts: Parts) -> np.ndarray | None:
        if parts.static is not None or parts.x.ndim < fewest:
            return None
        if parts.x.shape[axis] == 1:  # each number would have a scale of its own: nothing is rounded
            return None
        x = rotated(parts.x, parts.how.rotation) if parts.how.rotation else parts.x
        q = quantize(np.moveaxis(x, axis, -1), replace(parts.how, rotation=0, scale="row"), lambda y: y)
        return parts.finished(np.moveaxis(q.values * q.scale, -1, axis) @ parts.weight.T * parts.scale)

    return change


def _nan_of_zero_rows(parts: Parts) -> np.ndarray | None:
    zero = ~parts.x.any(axis=-1, keepdims=True)
    return np.where(zero, np.float32(np.nan), parts.result(parts.quantized())) if zero.any() else None


def _scaled_bias(parts: Parts) -> np.ndarray | None:
    if parts.bias is None:
        return None
    q = parts.quantized()
    return (parts.sums(q) + parts.bias) * (q.scale * parts.scale)


def _bias_in_steps(parts: Parts) -> np.ndarray | None:
    """The bias is a whole number of both scales' product, and is added as that number."""
    if parts.bias is None:
        return None
    q = parts.quantized()
    steps = q.scale * parts.scale
    return (parts.sums(q) * steps + np.rint(divided(parts.bias, steps))).astype(np.float32)


def _float16_sums(parts: Parts) -> np.ndarray:
    q = parts.quantized()
    sums = parts.sums(q).astype(np.float16).astype(np.float32)
    return parts.finished(sums * (q.scale * parts.scale))


def _static_ignored(parts: Parts) -> np.ndarray | None:
    if parts.static is None:
        return None
    parts.static = None
    return parts.result(parts.quantized())


def _next_scale(scale: np.ndarray) -> np.ndarray | None:
    return np.roll(scale, -1) if len(scale) > 1 else None


def _first_scale(scale: np.ndarray) -> np.ndarray | None:
    return np.full_like(scale, scale[0]) if len(scale) > 1 else None


_OF_ROWS = {
    "scale of the whole tensor taken for each row's, or the reverse": _other_sharing,
    "NaN where a row of x is zero": _nan_of_zero_rows,
}


def read_on(rule: Rule, weight_of: Weight = stored_weight) -> tuple[Mutant[Wrong], ...]:
    """Return the bugs of blocks that rows do not fill: behind a row lies the next, of x and of the weight."""

    def bug(block: int) -> Mutant[Wrong]:
        def change(parts: Parts) -> np.ndarray | None:
            by = -parts.x.shape[-1] % block
            if not by or parts.how.rotation:
                return None
            parts.x, parts.weight = widened(parts.x, by), widened(parts.weight, by)
            return parts.result(parts.quantized())

        return Mutant(f"rows are read on to whole {block}s of numbers", wrong(rule, change, weight_of))

    return tuple(bug(block) for block in (32, 64, 128))


def product_mutants(rule: Rule, weight_of: Weight = stored_weight, given: bool = True) -> tuple[Mutant[Wrong], ...]:
    """Return the known bugs that every page has. given: False where x has no scale that was measured beforehand"""
    changes = {
        "result divided by the activations' scale": _divided_scale,
        "activations rounded toward zero": with_rule(rounding="zero"),
        "activations not rounded: the weight was widened instead": _not_rounded,
        "activations' scale rounded to float16": _scale_through(np.float16),
        "activations' scale rounded to bfloat16": _scale_through(ml_dtypes.bfloat16),
        "activations' scale rounded up to a power of two once they are divided by it": _scale_of_power,
        **({"activations' given scale ignored": _static_ignored} if given else {}),
        "bias added before the scales are multiplied in": _scaled_bias,
        "bias in units of both scales' product, and not multiplied by it": _bias_in_steps,
        "sum of products stored in float16": _float16_sums,
    }
    return (
        *(Mutant(name, wrong(rule, change, weight_of)) for name, change in changes.items()),
        *(RowMutant(name, wrong(rule, change, weight_of)) for name, change in _OF_ROWS.items()),
        Mutant("weight's scale missing", other_input("weight_scale", np.ones_like)),
        Mutant("weight's scale inverted", other_input("weight_scale", lambda scale: 1 / scale)),
        RowMutant("weight read as its transpose", other_input("weight", read_as_transposed)),
        RowMutant("last columns left out", other_input("x", without_tail)),
        RowMutant("row i read from number i on, not from i K", other_input("x", shifted_rows)),
        NO_BIAS,
        BATCH,
        F16_INPUT,
    )


def row_mutants(rule: Rule, weight_of: Weight = stored_weight, given: bool = True) -> tuple[Mutant[Wrong], ...]:
    """Return the known bugs of formats without blocks: scales of rows, ties, and the sign of the largest number.

    given: as in product_mutants; a row's own scale puts no number on a tie that the two rules round differently
    """
    along = {
        "each row has the scale of the row before": _scale_of_the_row_before,
        "activations' scale of each channel, not of each row": _scale_along(-2, 2),
        "activations' scale taken over the items, not over the channels": _scale_along(0, 3),
    }
    changes = {
        **({"activations' ties rounded away from zero": with_rule(rounding="away")} if given else {}),
        "activations' scale from max x, not max |x|": _of_other_largest(lambda x, axis: x.max(axis, keepdims=True)),
        **scale_of_the_first(128),
    }
    return (
        *(RowMutant(name, wrong(rule, change, weight_of)) for name, change in along.items()),
        *(Mutant(name, wrong(rule, change, weight_of)) for name, change in changes.items()),
        Mutant("weight's scale of the next row", other_input("weight_scale", _next_scale)),
        Mutant("weight's first scale used for all rows", other_input("weight_scale", _first_scale)),
    )
