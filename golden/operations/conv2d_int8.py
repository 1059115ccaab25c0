"""Convolutions that multiply in int8: y = s_x s_w sum q w + b, the sum in int32, and so exact.

q = round(x / s_x), s_x = max |x| / 127 over all pictures, or given; w and s_w as stored; zero points as there.
Padding is 0, in codes the zero point. It is linear_int8 of the pixels under the filter, computed, bounded and
broken as such.

Source: ONNX operators QuantizeLinear and ConvInteger.
"""

from typing import Any

import numpy as np

from refsd.golden.bounds import Run
from refsd.golden.case import Case
from refsd.golden.mutations import SIDES_SWAPPED, Wrong, answer, other_input
from refsd.golden.operation import IMAGE, Mutant, Operation
from refsd.golden.operations.convolution import channels_interleaved, padding_repeated, window_fits
from refsd.golden.operations.few_bits import PRODUCT_INPUTS, ZERO_INPUTS, measured
from refsd.golden.operations.few_bits_bugs import Parts, RowMutant
from refsd.golden.operations.im2col import IM2COL
from refsd.golden.operations.linear_int8 import (
    IN_CODES,
    LINEAR_INT8,
    SEVEN_BITS,
    UNSIGNED,
    int8_rule,
    weight_in_codes,
    with_result,
)
from refsd.golden.recipe import Recipe
from refsd.golden.rounding import Bound
from refsd.kernels.convolution_geometry import each, positions
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT64
from refsd.numerics.tensor import stored


def _of_rows(params) -> dict:
    """Return the parameters of linear_int8."""
    return {"scales": "tensor", "rotation": 0, "zero_point": params["zero_point"]}


def _fits(shapes, params) -> bool:
    """Return whether the filters see every pixel, so that the scale of what they see is that of x."""
    if "x_zero" in shapes and not (params["zero_point"] and "x_scale" in shapes):
        return False
    if "y_zero" in shapes and "y_scale" not in shapes:
        return False
    if not window_fits(shapes, {**params, "dilation": 1, "groups": 1}):
        return False
    taps, sizes, padding, strides = (
        shapes["weight"][2:],
        shapes["x"][2:],
        params["padding"],
        each(params["stride"], 2),
    )
    counts = positions(sizes, padding, taps, strides, (1, 1))
    along = zip(sizes, padding[::2], taps, strides, counts, strict=True)
    return all(
        step <= tap and step * (count - 1) + tap - before >= size for size, before, tap, step, count in along
    )


def _patches(x: np.ndarray, weight: np.ndarray, params) -> np.ndarray:
    """[N, C, H, W] -> the pixels under the filter at each place [N, P Q, C R S]"""
    how = {"kernel": weight.shape[2:], "stride": params["stride"], "padding": params["padding"], "dilation": 1}
    columns = IM2COL.answer(Arithmetic(FLOAT64), {"x": stored(x)}, how)
    return np.ascontiguousarray(columns.swapaxes(1, 2), x.dtype)


def _as_rows(inputs, params) -> dict:
    """Return the inputs of linear_int8: the pixels under the filter for rows, filters for rows of the weight."""
    weight = inputs["weight"].values()
    rows = stored(_patches(inputs["x"].values(), weight, params))
    return {**inputs, "x": rows, "weight": stored(np.ascontiguousarray(weight.reshape(len(weight), -1)))}


def _places(inputs, params) -> tuple[int, ...]:
    x, weight = inputs["x"].shape, inputs["weight"].shape
    return positions(x[2:], params["padding"], weight[2:], each(params["stride"], 2), (1, 1))


def _folded(y: np.ndarray, places: tuple[int, ...]) -> np.ndarray:
    """[N, P Q, K] -> [N, K, P, Q]"""
    return np.ascontiguousarray(y.swapaxes(1, 2)).reshape(len(y), y.shape[2], *places)


def _run(a, inputs, params):
    return _folded(LINEAR_INT8.answer(a, _as_rows(inputs, params), _of_rows(params)), _places(inputs, params))


def _bound(run: Run) -> Bound:
    rows, places = _as_rows(run.stored, run.params), _places(run.stored, run.params)
    truth = run.truth.reshape(*run.truth.shape[:2], -1).swapaxes(1, 2)
    bound = LINEAR_INT8.bound_of(run.numerics, rows, _of_rows(run.params), truth)
    limit, spread = (_folded(np.broadcast_to(y, truth.shape), places) for y in (bound.limit, bound.spread))
    return bound._replace(limit=limit, spread=spread)


def _of_product(wrong: Wrong) -> Wrong:
    def change(op, inputs, params):
        y = wrong(LINEAR_INT8, _as_rows(inputs, params), _of_rows(params))
        return None if y is None else _folded(y, _places(inputs, params))

    return change


def _lowest_for_padding(op, inputs, params):
    """Padding is code 0. Without a zero point, activations are moved by 128 to be unsigned: it means -128."""
    parts = Parts(int8_rule, inputs, _of_rows(params))
    scale = parts.quantized().scale
    zero = parts.zeros(parts.quantized()) if params["zero_point"] else np.full((1,), 128, np.float32)
    top, bottom, left, right = params["padding"]
    lowest = -float(np.ravel(zero)[0]) * float(np.ravel(scale)[0])
    x = np.pad(inputs["x"].values(), [(0, 0), (0, 0), (top, bottom), (left, right)], constant_values=lowest)
    given = {"x_scale": stored(np.ravel(scale).astype(np.float32))}
    if params["zero_point"]:
        given["x_zero"] = stored(np.ravel(zero).astype(np.uint8))
    return answer(op, {**inputs, "x": stored(x), **given}, {**params, "padding": (0, 0, 0, 0)})


def _each_picture(op, inputs, params):
    if "x_scale" in inputs or inputs["x"].shape[0] < 2:
        return None
    alone = ({**inputs, "x": stored(x[None])} for x in inputs["x"].values())
    return np.concatenate([answer(op, one, params) for one in alone])


def _case(label: str, x, out: int, taps, stride: Any = 1, padding=None, bias=True, **more):
    """more: static, zero, result, the weight's codes, the recipe of x, zero_point"""
    result = more.pop("result", ())
    params, given, weight = (
        {name: more.pop(name) for name in names if name in more}
        for names in (("zero_point",), ("static", "zero"), ("per_row", "codes", "kind", "weight_zero"))
    )
    inputs = {"x": Recipe(x, **{"data": more.pop("x_data", "bell"), "exponent": -18, **more})}
    inputs |= weight_in_codes((out, x[1], *taps), **weight) | measured(**given) | with_result(*result)
    if bias:
        inputs["bias"] = Recipe((out,))
    around = tuple(side for tap in taps for side in (tap // 2, tap // 2))
    shape = "-".join(f"{name}{n}" for name, n in zip("nchw", x, strict=True))
    name = f"conv2d_int8/{label}-{taps[0]}x{taps[1]}-{shape}"
    return Case(name, "conv2d_int8", inputs, {"padding": padding or around, "stride": stride, **params})


CONV2D_INT8 = Operation(
    "conv2d_int8",
    "Round activations to int8, convolve them with filters of int8, apply both scales, add a bias.",
    family="convolution",
    inputs={**PRODUCT_INPUTS, "x": IMAGE, "weight": "[K, C, R, S]", "weight_scale": "[K or 1]", "bias?": "[K]"}
    | {**ZERO_INPUTS, "weight_zero?": "[K or 1]"},
    output="[N, K, P, Q]",
    channel=1,
    params={"stride": 1, "padding": (0, 0, 0, 0), "zero_point": False},
    run=_run,
    bound=_bound,
    fits=_fits,
    mutants=(
        *(
            Mutant(mutant.name, _of_product(mutant.change))
            for mutant in LINEAR_INT8.mutants
            if not isinstance(mutant, RowMutant)
        ),
        Mutant("each picture has a scale of its own", _each_picture),
        Mutant("padding is code 0 of unsigned activations, not the zero point", _lowest_for_padding),
        Mutant("border repeated", padding_repeated),
        Mutant("filters read channels last", other_input("weight", channels_interleaved)),
        SIDES_SWAPPED,
    ),
    cases=(
        _case("same", (2, 7, 9, 6), 12, (3, 3)),
        _case("down", (1, 16, 8, 12), 9, (3, 3), stride=2),
        _case("down-uneven", (2, 5, 8, 6), 8, (3, 3), stride=2, padding=(0, 1, 0, 1)),
        _case("down-across", (1, 4, 7, 9), 6, (3, 2), stride=(2, 1), padding=(1, 1, 0, 1)),
        _case("point", (2, 33, 5, 7), 20, (1, 1), bias=False),
        _case("one-scale", (2, 7, 5, 9), 8, (3, 3), per_row=False),
        _case("outliers", (1, 16, 9, 7), 12, (3, 3), x_data="outliers"),
        # Ties at each half; codes beyond both ends; the lowest codes of both, in pairs.
        _case("given-ties", (1, 8, 7, 6), 9, (3, 3), static=1, x_data="integers", exponent=0),
        _case("given-saturated", (2, 8, 6, 7), 12, (3, 3), static=-7, exponent=-15),
        _case("given-lowest", (1, 6, 7, 6), 12, (3, 3), static=-7, exponent=-15, codes=(-128.0, 2)),
        _case("result", (2, 7, 9, 6), 12, (3, 3), static=-7, exponent=-15, bias=False, result=(-9,)),
        _case("zero-result", (1, 16, 8, 9), 9, (3, 3), stride=2, **IN_CODES),
        _case("zero-same", (2, 7, 9, 6), 12, (3, 3), zero_point=True, **UNSIGNED),
        _case("zero-down", (1, 16, 8, 9), 9, (3, 3), stride=2, zero_point=True, codes=SEVEN_BITS, bias=False),
        _case(
            *("zero-given-ties", (1, 8, 7, 6), 9, (3, 3)),
            **UNSIGNED | {"zero_point": True, "static": 1, "zero": 97, "x_data": "integers", "exponent": 0},
        ),
        _case(
            *("zero-given-saturated", (2, 8, 6, 7), 12, (3, 3)),
            **UNSIGNED | {"zero_point": True, "static": -7, "zero": 97, "exponent": -15, "per_row": False},
        ),
        # All numbers far above 0; pairs of products of unsigned and signed codes.
        _case(
            *("zero-pairs", (2, 33, 5, 4), 8, (1, 1)),
            zero_point=True,
            codes=(-128.0, 256),
            x_data="positive",
            exponent=-15,
            offset=4.0,
        ),
    ),
)

OPERATIONS = (CONV2D_INT8,)
