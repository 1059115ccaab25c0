"""How a product rounds its activations to few bits: the value, and the rounding."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from refsd.kernels.quant import convrot
from refsd.kernels.quant.activation_codes import (
    GRIDS,
    Grid,
    divided,
    floor_scale,
    less_zero,
    power_scale,
    scale_of,
    span_scale,
    to_grid,
    zero_point,
)
from refsd.numerics.errors import BadInput

_POWERS = {"e8m0": power_scale, "e8m0_floor": floor_scale}


@dataclass(frozen=True)
class Quantization:
    """How a product rounds its activations to few bits.

    type:     a key of kernels.quant.activation_codes.GRIDS: "int8", "int4", "f8_e4m3", "f8_e5m2", "f4_e2m1" ...
    scale:    the numbers that share a float32 scale, max |x| / largest: "tensor" or "row"; "none": the scale is 1
    block:    numbers of a row that share a second scale; 0: none
    block_scale: its type: "f8_e4m3" (NVFP4), "f32" (groups), or a power of two (MXFP8, MXFP4), "e8m0": the least
              that clips nothing, "e8m0_floor": the specification's, which may
    rounding: of ties, "even" or "away"; "zero": every number toward zero
    largest:  the number to which max |x| is mapped; 0: the type's largest
    rotation: size of the groups in which a Hadamard matrix first rotates rows (kernels/quant/convrot.py); 0: none
    zero_point: True: codes span min(x, 0) to max(x, 0), and 0 has one of them (integers without blocks)
    quotient: "storage": x / scale is rounded to the storage dtype, as is this scale, but not the products' scale;
              "compute" (without blocks): x times 1 / scale is not, but the scale is, for the products, too;
              "wide" (without blocks): neither x / scale nor the scale is
    fewest:   rows of x below which linear layers round nothing
    outliers: columns with an |x| as large are not rounded, and such numbers set no scale; 0: none (scales of rows)
    """

    type: str
    scale: str = "row"
    block: int = 0
    block_scale: str = "f8_e4m3"
    rounding: str = "even"
    largest: float = 0.0
    rotation: int = 0
    quotient: str = "storage"
    zero_point: bool = False
    fewest: int = 0
    outliers: float = 0.0

    @property
    def grid(self) -> Grid:
        return GRIDS[self.type]

    @property
    def axis(self) -> int | None:
        """The axis along which numbers share a scale; None: all do."""
        return -1 if self.scale == "row" else None

    @property
    def reach(self) -> float:
        """The number to which the largest |x| of a scale is mapped, or, with a zero point, the span of x."""
        largest = self.largest or self.grid.largest - (self.grid.lowest if self.zero_point else 0)
        return largest * GRIDS[self.block_scale].largest if self.block and self.scale != "none" else largest

    @property
    def integers(self) -> bool:
        """True if products of such numbers are added up exactly, in int32."""
        return self.grid.exponent is None and not self.block

    @property
    def powers(self) -> bool:
        """True if numbers are divided by a power of two alone, which is exact."""
        return self.block > 0 and self.scale == "none" and self.block_scale in _POWERS

    def __str__(self) -> str:
        """The words of reports: "int8, a scale a row"."""
        zero = ", with a zero point" if self.zero_point else ""
        under = {"none": "", "row": ", a scale a row", "tensor": ", one scale for the tensor"}[self.scale]
        lower = ", rounded down" if self.block_scale == "e8m0_floor" else ""
        blocks = f", a scale every {self.block}{lower}" if self.block else ""
        turned = f", rotated in groups of {self.rotation}" if self.rotation else ""
        ties = {"even": "", "away": ", ties away from zero", "zero": ", rounded toward zero"}[self.rounding]
        reach = f" to {self.largest:g}" if self.largest else ""
        wide = {"compute": ", x times 1 / scale in float32", "wide": ", x / scale in float32"}.get(
            self.quotient, ""
        )
        least = f", from {self.fewest} rows on" if self.fewest else ""
        kept = f", columns with numbers from {self.outliers:g} on as they are" if self.outliers else ""
        return f"{self.type}{reach}{under}{zero}{blocks}{turned}{ties}{wide}{least}{kept}"


@dataclass(frozen=True)
class Int8Scores:
    """Attention whose scores are products of int8: kernels/attention_int8.py.

    query_block: queries of a head that share a scale
    key_block:   keys of a head that share a scale
    smooth:      the keys' mean is subtracted first
    largest_head: the most channels of a head that such kernels take; they take no mask either
    """

    query_block: int = 128
    key_block: int = 64
    smooth: bool = True
    largest_head: int = 128

    def __str__(self) -> str:
        """The words of reports."""
        mean = ", the keys' mean subtracted" if self.smooth else ""
        return f"int8, a scale every {self.query_block} queries and {self.key_block} keys{mean}"


class Quantized(NamedTuple):
    """Numbers of few bits: x = values * scale, or its rotation.

    values: [..., K] numbers of the grid, times the scale of their block; or codes less their zero point
    scale:  [..., 1], broadcast to values
    """

    values: np.ndarray
    scale: np.ndarray


def quantize(
    x: np.ndarray,
    how: Quantization,
    settled: Callable[[np.ndarray], np.ndarray],
    static: np.ndarray | None = None,
    zero: np.ndarray | None = None,
) -> Quantized:
    """Round activations to few bits.

    x:       [..., K], in the dtype in which to compute
    settled: rounds a result that is passed on, to the dtype that engines store
    static:  a scale that was measured beforehand, instead of the tensor's or row's own
    zero:    its zero point; None: 0
    """
    if how.rotation:
        x = settled(rotated(x, how.rotation))
    scale = scales(x, how) if static is None else static.astype(x.dtype).reshape((1,) * x.ndim)
    grid = how.grid
    if how.zero_point:
        grid = less_zero(grid, zeros(x, how, scale) if static is None else given_zero(zero, x))
    if not how.block and how.quotient == "compute":
        scale = settled(scale)
        return Quantized(to_grid(x * divided(np.ones_like(scale), scale), grid, how.rounding), scale)
    if not how.block:
        quotient = divided(x, scale) if how.quotient == "wide" else settled(divided(x, settled(scale)))
        return Quantized(to_grid(quotient, grid, how.rounding), scale)
    blocks = in_blocks(x, how.block)
    inner = block_scales(blocks, how, scale[..., None])
    v = divided(blocks, scale[..., None] * inner)
    values = to_grid(v, how.grid, how.rounding) * inner
    return Quantized(values.reshape(*x.shape[:-1], -1)[..., : x.shape[-1]], scale)


def scales(x: np.ndarray, how: Quantization) -> np.ndarray:
    """Return the scale of each row or of all. -> broadcast to x"""
    if how.scale == "none":
        return np.ones((1,) * x.ndim, x.dtype)
    return (span_scale if how.zero_point else scale_of)(x, how.axis, how.reach)


def zeros(x: np.ndarray, how: Quantization, scale: np.ndarray, away: np.ndarray | float = 0.0) -> np.ndarray:
    """Return the zero point of each row or of all. away: added before it is rounded -> broadcast to x"""
    return zero_point(x, how.axis, scale, how.grid, how.rounding, away)


def given_zero(zero: np.ndarray | None, x: np.ndarray) -> np.ndarray:
    """Return a zero point that was measured beforehand, 0 if there is none. -> broadcast to x"""
    return np.zeros((1,) * x.ndim, x.dtype) if zero is None else zero.astype(x.dtype).reshape((1,) * x.ndim)


def block_scales(blocks: np.ndarray, how: Quantization, scale: np.ndarray) -> np.ndarray:
    """Return the second scale of each block. blocks: [..., n, block] -> [..., n, 1]"""
    largest = how.largest or how.grid.largest
    if how.block_scale in _POWERS:
        return _POWERS[how.block_scale](blocks, -1, largest)
    if how.block_scale == "f32":
        return divided(scale_of(blocks, -1, largest), scale)
    return to_grid(divided(scale_of(blocks, -1, largest), scale), GRIDS[how.block_scale])


def in_blocks(x: np.ndarray, block: int) -> np.ndarray:
    """Cut rows into blocks, the last of which is filled with 0. [..., K] -> [..., n, block]"""
    missing = -x.shape[-1] % block
    padded = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, missing)]) if missing else x
    return padded.reshape(*x.shape[:-1], -1, block)


def rotated(x: np.ndarray, group: int) -> np.ndarray:
    """Multiply the rows of x by ConvRot's Hadamard matrix, its own inverse. [..., K] -> the same

    Raises BadInput if the group does not divide K.
    """
    if x.shape[-1] % group:
        raise BadInput(f"rows of {x.shape[-1]} are no whole groups of {group}, in which activations are rotated")
    return convrot.rotate(x.reshape(-1, x.shape[-1]), group).reshape(x.shape)


def too_few(x: np.ndarray, how: Quantization) -> bool:
    """Return whether x [..., K] has fewer rows than a linear layer rounds."""
    return x.size < how.fewest * x.shape[-1]


def kept_columns(x: np.ndarray, how: Quantization) -> np.ndarray:
    """Return which columns of x [..., K] are not rounded. -> bool [K]"""
    return np.abs(x).reshape(-1, x.shape[-1]).max(axis=0, initial=0) >= how.outliers


def without_outliers(x: np.ndarray, how: Quantization) -> np.ndarray:
    return np.where(np.abs(x) < how.outliers, x, x.dtype.type(0))


def rounded(x: np.ndarray, how: Quantization, settled: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Round activations to few bits and widen them again, without the rotation. -> the shape and dtype of x"""
    if too_few(x, how):
        return x
    if how.outliers:
        y = rounded(without_outliers(x, how), replace(how, outliers=0.0), settled)
        return np.where(kept_columns(x, how), x, y)
    q = quantize(x, how, settled)
    y = q.values * q.scale
    return rotated(y, how.rotation) if how.rotation else y
