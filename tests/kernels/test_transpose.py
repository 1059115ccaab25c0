"""Transposing in registers: every shape beside a vector's lanes, and nothing written beside the result."""

import numpy as np
import pytest

from refsd.kernels._jit import kernel
from refsd.kernels.microkernel import NARROW, ROWS
from refsd.kernels.transpose import move_narrow, transpose, transpose_panel

TYPES = (np.float32, np.float64)


@kernel(parallel=False)
def _move(x, y):
    move_narrow(x, y)


def _numbers(shape, dtype, margin):
    """Distinct numbers inside an array that is wider, so that rows are not adjacent. -> view"""
    wide = np.arange(shape[0] * (shape[1] + margin), dtype=dtype).reshape(shape[0], -1)
    return wide[:, margin // 2 : margin // 2 + shape[1]]


def _room(shape, dtype):
    """A result's place in an array of NaN. -> the array, the view"""
    whole = np.full((shape[0] + 2, shape[1] + 5), np.nan, dtype)
    return whole, whole[1:-1, 2:-3]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(1, 1), (3, 40), (40, 3), (4, 4), (16, 16), (17, 33), (32, 40), (9, 31)])
def test_rows_become_columns_and_nothing_else_is_written(shape, dtype):
    x = _numbers(shape, dtype, 3)
    whole, y = _room(shape[::-1], dtype)
    transpose(x, y)
    np.testing.assert_array_equal(y, x.T)
    assert np.isnan(whole).sum() == whole.size - y.size


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("columns", [1, 3, 4, 8, 15, 16, 17, 40])
def test_a_panel(columns, dtype):
    x = _numbers((ROWS, columns), dtype, 4)
    whole = np.full((columns + 2, ROWS), np.nan, dtype)
    transpose_panel(x, whole[1:-1])
    np.testing.assert_array_equal(whole[1:-1], x.T)
    assert np.isnan(whole[0]).all() and np.isnan(whole[-1]).all()
    transpose_panel(x[:-1], whole[1:-1])
    assert (whole[1:-1, -1] == 0).all() and (whole[1:-1, :-1] == x[:-1].T).all()


@pytest.mark.parametrize("dtype", TYPES)
def test_rows_of_a_narrow_panel(dtype):
    x = _numbers((7, NARROW), dtype, 5)
    whole, y = _room(x.shape, dtype)
    _move(x, y)
    np.testing.assert_array_equal(y, x)
    assert np.isnan(whole).sum() == whole.size - y.size
