"""Bound how far activations in few bits may be from the truth's.

A number whose quotient x / scale lies near a tie may become either of two neighbours: which one depends on the last
bit of the scale. All other numbers have one right code, so that products of codes are bounded far more tightly than
the step of the format says.
"""

from dataclasses import replace
from typing import NamedTuple

import ml_dtypes
import numpy as np

from refsd.kernels.quant.activation_codes import Grid, divided, less_zero, to_grid
from refsd.numerics.profiles import DTYPES
from refsd.numerics.quantization import (
    Quantization,
    block_scales,
    given_zero,
    in_blocks,
    kept_columns,
    quantize,
    rotated,
    scales,
    too_few,
    without_outliers,
    zeros,
)

# Roundings between x and its code: of the scale, of the scale as it is stored, of its reciprocal, of the quotient.
_ROUNDINGS = 4
# The logarithm of a number beside a power of two may round to that power's: the scale changes on one side alone.
_SIDES = {"e8m0": (-1, 0), "e8m0_floor": (0, 1)}


class Moves(NamedTuple):
    """The truth's few bits, and how far an engine's may be.

    values: [..., K], as quantize gives them in float64; moved: how far each may be from there
    scale:  [..., 1]; relative: how far it may be, relative to itself
    """

    values: np.ndarray
    moved: np.ndarray
    scale: np.ndarray
    relative: np.ndarray


def _u(storage: str) -> float:
    return float(ml_dtypes.finfo(DTYPES[storage]).eps) / 2


def _power_of_two(x: np.ndarray) -> np.ndarray:
    return np.frexp(x)[0] == 0.5


def moves(
    x: np.ndarray,
    dx: np.ndarray,
    how: Quantization,
    compute: str,
    storage: str,
    static: np.ndarray | None = None,
    zero: np.ndarray | None = None,
) -> Moves:
    """Bound quantize. x: float64 [..., K]; dx: its own error; static, zero: as in quantize"""
    u, narrow = _u(compute), max(_u(compute), _u(storage))
    if how.rotation:
        x, dx = _rotation(x, dx, how.rotation, u, narrow if storage != compute else 0.0)
        how = replace(how, rotation=0)
    q = quantize(x, how, lambda y: y, static, zero)
    if static is None and how.scale != "none":
        own = scales(x, how)
        most = dx.max(axis=how.axis, keepdims=True, initial=0) * (2 if how.zero_point else 1)  # both ends of a span
        relative = divided(most / how.reach, own) + 2 * u
    else:
        relative = np.zeros(q.scale.shape)
    if how.quotient != "storage":
        relative, narrow, storage = relative + (narrow if how.quotient == "compute" else 0.0), u, compute
    exact = _power_of_two(q.scale) & (relative == 0)
    info = ml_dtypes.finfo(DTYPES[storage])
    stored = divided(np.full_like(q.scale, float(info.smallest_subnormal)), q.scale)
    error = np.where(exact, 0.0, relative + _ROUNDINGS * narrow + stored)
    if not how.block:
        v = divided(x, q.scale)
        away = divided(dx, q.scale) + np.abs(v) * error
        grids = _grids(x, dx, how, q.scale, error, static, zero)
        ends = [to_grid(v + sign * away, g, how.rounding) for sign, g in zip((-1, 1), grids, strict=True)]
        moved = np.max([np.abs(end - q.values) for end in ends], axis=0)
        return Moves(q.values, moved, q.scale, relative)
    moved = _moved_blocks(x, dx, how, q.scale, error + _ROUNDINGS * (u if how.powers else narrow))
    return Moves(q.values, moved, q.scale, relative)


def _grids(x, dx, how: Quantization, scale, error, static, zero) -> tuple[Grid, Grid]:
    """Return the numbers of the grid with the greatest zero point that an engine may have, and with the least."""
    if not how.zero_point:
        return how.grid, how.grid
    if static is not None:
        given = less_zero(how.grid, given_zero(zero, x))
        return given, given
    doubt = how.reach * error + divided(dx.max(axis=how.axis, keepdims=True, initial=0), scale)
    high, low = (less_zero(how.grid, zeros(x, how, scale, sign * doubt)) for sign in (1, -1))
    return high, low


def _moved_blocks(x: np.ndarray, dx: np.ndarray, how: Quantization, scale: np.ndarray, error) -> np.ndarray:
    """Bound the values of blocks whose own scale may be either of two neighbours, too."""
    blocks, doubt = in_blocks(x, how.block), in_blocks(dx, how.block)
    scale, error = scale[..., None], np.asarray(error)[..., None]
    most = np.abs(blocks).max(axis=-1, keepdims=True) * error + doubt.max(axis=-1, keepdims=True)
    right = block_scales(blocks, how, scale)
    values = to_grid(divided(blocks, scale * right), how.grid, how.rounding) * right
    moved = np.zeros_like(values)
    for sign in (-1, 0, 1) if doubt.any() else _SIDES.get(how.block_scale, (-1, 0, 1)):
        largest = np.abs(blocks).max(axis=-1, keepdims=True) + sign * most
        inner = block_scales(np.maximum(largest, 0), how, scale) if sign else right
        v = divided(blocks, scale * inner)
        away = divided(doubt, scale * inner) + np.abs(v) * (0.0 if how.powers else error)
        for end in (v - away, v + away):
            moved = np.maximum(moved, np.abs(to_grid(end, how.grid, how.rounding) * inner - values))
    return moved.reshape(*x.shape[:-1], -1)[..., : x.shape[-1]]


def _rotation(x, dx, group: int, u: float, narrow: float) -> tuple[np.ndarray, np.ndarray]:
    """Rotate x and bound the error. A sum of numbers on one grid, none beyond its 1 / u steps, is exact."""
    parts = x.reshape(*x.shape[:-1], -1, group)
    total = np.abs(parts).sum(axis=-1, keepdims=True)
    fine = np.ldexp(u, np.frexp(total)[1])
    exact = (np.mod(parts, fine) == 0).all(axis=-1, keepdims=True)
    root = np.sqrt(group)
    sums = np.where(exact, 0.0, group * u / (1 - group * u) * total) / root
    sums = np.broadcast_to(sums, parts.shape).reshape(x.shape)
    from_input = dx.reshape(parts.shape).sum(axis=-1, keepdims=True) / root
    z = rotated(x, group)
    dz = sums + np.broadcast_to(from_input, parts.shape).reshape(x.shape)
    return z, dz + narrow * (np.abs(z) + dz)


def moved_to_few_bits(x: np.ndarray, how: Quantization, storage: str) -> np.ndarray:
    """Bound the error of rounding x to few bits and back. x: float64 [..., K]"""
    if too_few(x, how):
        return np.zeros_like(x)
    if how.outliers:
        moved = moved_to_few_bits(without_outliers(x, how), replace(how, outliers=0.0), storage)
        return np.where(kept_columns(x, how), 0.0, moved)
    compute = "float64" if storage == "float64" else "float32"
    bits = moves(x, np.zeros_like(x), how, compute, storage)
    z = rotated(x, how.rotation) if how.rotation else x
    largest = np.abs(bits.values) + bits.moved
    moved = np.abs(bits.values * bits.scale - z) + bits.scale * (bits.moved + largest * bits.relative)
    if not how.rotation:
        return moved
    parts = moved.reshape(*x.shape[:-1], -1, how.rotation).sum(axis=-1, keepdims=True) / np.sqrt(how.rotation)
    return np.repeat(parts, how.rotation, axis=-1).reshape(x.shape)
