"""What the linear layers in few bits share: the reference and the bound."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from refsd.golden.bounds import Run, bias_of, sums
from refsd.golden.case import Case
from refsd.golden.few_bits import moves
from refsd.golden.operation import Inputs, Params, optional, values
from refsd.golden.recipe import Recipe
from refsd.golden.rounding import Bound, Terms, gamma
from refsd.kernels.quant.activation_codes import GRIDS, Grid, divided, less_zero, to_grid
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import Numerics
from refsd.numerics.quantization import Quantization

# The parameters of a case -> how its activations are rounded.
Rule = Callable[[Params], Quantization]
# A case's tensors -> the weight's numbers, without the scale of the tensor or the row.
Weight = Callable[[Inputs], np.ndarray]


def stored_weight(inputs: Inputs) -> np.ndarray:
    return inputs["weight"].values()


def scale_of_weight(inputs: Inputs) -> np.ndarray:
    """Return the scale of the tensor, or of each row; 1 where blocks alone have scales."""
    return inputs["weight_scale"].values() if "weight_scale" in inputs else np.ones(1, np.float32)


def static_numbers(inputs: Inputs) -> tuple[np.ndarray | None, np.ndarray | None]:
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
        weight, scale = weight_of(inputs).astype(dtype), scale_of_weight(inputs).astype(dtype)
        x, bias = values(a, inputs["x"]), optional(a, inputs, "bias")
        how = _as_declared(rule(params), a.numerics)
        return in_codes(a.linear_quantized(x, weight, scale, bias, how, *static_numbers(inputs)), inputs)

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
        bits = moves(x, run.moved("x"), how, n.compute, n.storage, *static_numbers(run.stored))
        W, K = weight_of(run.stored).astype(np.float64), x.shape[-1]
        scale = np.abs(bits.scale * scale_of_weight(run.stored).astype(np.float64))
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
