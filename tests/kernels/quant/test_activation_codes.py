"""Rounding to few bits against a search of all numbers of a format."""

import itertools
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive.quant import activation_codes as naive

from refsd.kernels.quant.activation_codes import (
    GRIDS,
    less_zero,
    power_scale,
    scale_of,
    span_scale,
    to_grid,
    zero_point,
)


@pytest.mark.parametrize("kind", GRIDS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_number_and_every_tie(kind, dtype):
    table = [float(v) for v, _ in naive.numbers(kind)]
    between = [(a + b) / 2 for a, b in itertools.pairwise(table)]
    beside = [np.nextafter(dtype(v), dtype(sign)) for v in between for sign in (-np.inf, np.inf)]
    v = np.array([*table, *between, *beside, 2 * table[-1], 2 * table[0]], dtype)
    expected = [float(naive.nearest(Fraction(float(x)), kind)) for x in v]
    rounded = to_grid(v, GRIDS[kind])
    assert rounded.dtype == dtype and rounded.tolist() == expected


@pytest.mark.parametrize("kind", ["f8_e4m3", "f8_e5m2"])
def test_floats_are_those_of_ml_dtypes(kind):
    dtype = {"f8_e4m3": ml_dtypes.float8_e4m3fn, "f8_e5m2": ml_dtypes.float8_e5m2}[kind]
    v = np.random.default_rng(1).standard_normal(4096).astype(np.float32) * np.float32(3)
    assert (to_grid(v, GRIDS[kind]) == v.astype(dtype).astype(np.float32)).all()


@given(st.floats(-130, 130, width=32))
@settings(deadline=None)
def test_other_roundings(v):
    x = np.array([v], np.float32)
    assert to_grid(x, GRIDS["int8"], "zero") == np.clip(int(v), -128, 127)
    away = np.sign(v) * int(abs(Fraction(v)) + Fraction(1, 2))
    assert to_grid(x, GRIDS["int8"], "away") == np.clip(away, -128, 127)


def test_scales():
    x = np.array([[0, -4, 1], [0, 0, 0], [8, 2, 1]], np.float32)
    assert scale_of(x, -1, 2.0).tolist() == [[2], [0], [4]] and scale_of(x, None, 2.0).tolist() == [[4]]
    assert power_scale(x, -1, 3.0).tolist() == [[2], [0], [4]] and power_scale(x, -1, 2.0).tolist() == [
        [2],
        [0],
        [4],
    ]


def test_zero_points():
    """The span of a row and 0 in 255 steps; the zero point is the code of 0."""
    x = np.array([[-1, 4, 254], [3, 5, 255], [-255, -7, -1], [0, 0, 0]], np.float32)
    scale = span_scale(x, -1, 255)
    assert scale.tolist() == [[1], [1], [1], [0]] and span_scale(x, None, 255).tolist() == [[2]]
    zero = zero_point(x, -1, scale, GRIDS["uint8"])
    assert zero.tolist() == [[1], [0], [255], [0]]
    assert zero_point(x, -1, scale, GRIDS["int8"]).tolist() == [[-127], [-128], [127], [-128]]
    grid = less_zero(GRIDS["uint8"], zero)
    assert to_grid(np.full((4, 1), 300, np.float32), grid).tolist() == [[254], [255], [0], [255]]
    assert to_grid(np.full((4, 1), -300, np.float32), grid).tolist() == [[-1], [0], [-255], [0]]


def test_ties_of_zero_points():
    x = np.array([[-1.5, 253.5], [-2.5, 252.5]], np.float32)
    scale = span_scale(x, -1, 255)
    assert [zero_point(x, -1, scale, GRIDS["uint8"], how).ravel().tolist() for how in ("even", "away", "zero")] == [
        [2, 2],
        [2, 3],
        [1, 2],
    ]
    assert zero_point(x, -1, scale, GRIDS["uint8"], away=-0.25).ravel().tolist() == [1, 2]
