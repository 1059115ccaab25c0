"""Round activations to few bits under scales that the data set, as products in int8, FP8, NVFP4 and MXFP8 do.

A format is a grid of numbers; an activation becomes the grid's number nearest to x / scale. Weights come from files
with their scales, activations get theirs as they pass:

    tensor, row    scale = max |x| / largest
    with a zero point   scale = (max(x, 0) - min(x, 0)) / (largest - lowest); 0 has a code, the zero point
    blocks         a block's scale is itself a small float, times one scale for the tensor (NVFP4) or not (MXFP8)
"""

from typing import NamedTuple

import numpy as np


class Grid(NamedTuple):
    """The numbers of a format of few bits.

    largest:  the number to which a scale maps the largest |x|
    lowest:   the least number; of codes less their zero points both are arrays [..., 1]
    mantissa: bits of the mantissa; 0 and exponent None: integers
    exponent: the smallest exponent of a normal number
    """

    largest: float
    lowest: float
    mantissa: int = 0
    exponent: int | None = None


GRIDS = {
    "int8": Grid(127, -128),
    "int4": Grid(7, -7),  # SVDQuant's: -8 is never written
    "uint4": Grid(15, 0),
    "uint8": Grid(255, 0),
    "f8_e4m3": Grid(448, -448, 3, -6),
    "f8_e5m2": Grid(57344, -57344, 2, -14),
    "f4_e2m1": Grid(6, -6, 1, 0),
}


def _even(v):
    return np.rint(v)


def _away(v):
    return np.copysign(np.floor(np.abs(v) + v.dtype.type(0.5)), v)


def _toward_zero(v):
    return np.trunc(v)


ROUNDINGS = {"even": _even, "away": _away, "zero": _toward_zero}


def to_grid(v, grid, rounding="even"):
    """Round numbers to a grid; what lies beyond its ends becomes the end.

    v:    float32 or float64 [...], finite
    grid: a Grid
    rounding: of ties, "even" or "away"; or "zero": every number toward zero
    -> q: the same dtype; exact

    Source: Micikevicius et al. 2022, FP8 formats for deep learning, table 1; OCP Microscaling Formats 1.0, table 1.
    """
    q = ROUNDINGS[rounding](v / step(v, grid)) * step(v, grid)
    return np.clip(q, v.dtype.type(grid.lowest), v.dtype.type(grid.largest))


def step(v, grid):
    """Return the distance between the numbers of a grid around v. -> the dtype of v"""
    if grid.exponent is None:
        return v.dtype.type(1)
    exponent = np.maximum(np.frexp(v)[1] - 1, grid.exponent)
    return np.ldexp(v.dtype.type(1), exponent - grid.mantissa)


def scale_of(x, axis, largest):
    """Return max |x| / largest over an axis (None: over all), which is kept as 1; 0 where all x are 0."""
    return np.abs(x).max(axis=axis, keepdims=True, initial=0) / x.dtype.type(largest)


def span_scale(x, axis, steps):
    """Return (max(x, 0) - min(x, 0)) / steps over an axis (None: over all), which is kept as 1."""
    span = x.max(axis=axis, keepdims=True, initial=0) - x.min(axis=axis, keepdims=True, initial=0)
    return span / x.dtype.type(steps)


def zero_point(x, axis, scale, grid, rounding="even", away: np.ndarray | float = 0.0):
    """Return the code of 0 if the least of x and 0 is to have the lowest code. away: added before it is rounded

    Source: ONNX operator DynamicQuantizeLinear, whose scale is span_scale's; there a scale of 0 is 1.
    """
    least = x.min(axis=axis, keepdims=True, initial=0)
    return to_grid(grid.lowest - divided(least, scale) + away, grid, rounding)


def less_zero(grid, zero):
    """Return the numbers that codes stand for, in steps: codes less their zero point."""
    return grid._replace(largest=grid.largest - zero, lowest=grid.lowest - zero)


def power_scale(x, axis, largest):
    """Return the least power of two that is not below max |x| / largest; 0 where all x are 0: MXFP8's E8M0."""
    needed = scale_of(x, axis, largest)
    mantissa, exponent = np.frexp(needed)
    return np.where(
        needed == 0, needed, np.ldexp(x.dtype.type(1), np.where(mantissa == 0.5, exponent - 1, exponent))
    )


def floor_scale(x, axis, largest):
    """Return the power of two that has the largest |x| in the grid's last binade; 0 where all x are 0.

    Numbers that are rounded beyond the grid's largest become it: of E4M3 those from 1.75 times a power of two on.
    Source: OCP Microscaling Formats 1.0, section 6.3.
    """
    most = np.abs(x).max(axis=axis, keepdims=True, initial=0)
    exponent = np.frexp(most)[1] - np.frexp(largest)[1]
    return np.where(most == 0, most, np.ldexp(x.dtype.type(1), exponent))


def divided(x, scale):
    """Return x / scale; 0 where the scale is 0."""
    return np.divide(x, scale, out=np.zeros(np.broadcast_shapes(x.shape, scale.shape), x.dtype), where=scale != 0)
