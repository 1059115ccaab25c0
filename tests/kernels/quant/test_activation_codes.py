"""Rounding to few bits against a search of all numbers of a format."""

import itertools
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive.quant import activation_codes as naive

from refsd.kernels.quant.activation_codes import GRIDS, power_scale, scale_of, to_grid


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
