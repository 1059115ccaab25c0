"""Rows of a stored tensor are its values' rows, whatever its type, and nothing else is read."""

import numpy as np
import pytest

from refsd.golden.recipe import Recipe, realize
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT32, FLOAT64
from refsd.numerics.tensor import Scaling, StoredTensor, stored

TYPES = ("f32", "f16", "bf16", "f8_e4m3", "i32", "q4_0", "q8_0", "q6_k")
RNG = np.random.default_rng(0)


def table(type, rows=11, width=256):
    return realize(Recipe((rows, width), type, exponent=0 if type[0] == "i" else -15), "table")


@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("index", [np.array([7, 0, 0, 10]), slice(3, 9), np.zeros(0, np.int64)])
def test_rows_are_the_rows_of_the_values(type, index):
    part = table(type).rows(index)
    assert part.shape == (len(part.values()), 256)
    np.testing.assert_array_equal(part.values(), table(type).values()[index])


def test_rows_count_over_all_axes_but_the_last():
    x = RNG.standard_normal((2, 3, 4, 5), np.float32)
    np.testing.assert_array_equal(stored(x).rows(np.array([23, 4])).values(), x.reshape(-1, 5)[[23, 4]])
    assert stored(x[:0]).rows(np.zeros(0, np.int64)).shape == (0, 5)


@pytest.mark.parametrize("rotation", [0, 16])
@pytest.mark.parametrize("scales", [1, 6])
def test_scaled_rows_keep_their_own_scales(rotation, scales):
    scale = RNG.random(scales, np.float32)
    codes = RNG.integers(-127, 128, (6, 32), np.int8)
    tensor = StoredTensor("i8", (6, 32), codes, Scaling(scale, rotation))
    for index in (np.array([5, 1]), slice(2, 4)):
        np.testing.assert_array_equal(tensor.rows(index).values(), tensor.values()[index])


@pytest.mark.parametrize("index", [-1, 11])
def test_a_row_that_is_not_there(index):
    with pytest.raises(IndexError, match=rf"rows 0\.\.{index}|rows {index}\.\.0 do not fit a table of 11 rows"):
        table("q8_0").rows(np.array([0, index]))


@pytest.mark.parametrize("type", ["f16", "bf16"])
def test_wide_types_are_widened_alike_by_kernel_and_numpy(type):
    """Float32 goes through the kernel; float64 does not. Every bit pattern that is a number."""
    kind = table(type).data.dtype
    values = np.arange(1 << 16, dtype=np.uint16).view(kind)
    values = values[np.isfinite(values.astype(np.float32))].reshape(-1, 2)
    expanded = Arithmetic(FLOAT32).expand(stored(values))
    assert expanded.dtype == np.float32 and expanded.flags.writeable and expanded.shape == values.shape
    np.testing.assert_array_equal(expanded.view(np.uint32), values.astype(np.float32).view(np.uint32))
    np.testing.assert_array_equal(Arithmetic(FLOAT64).expand(stored(values)), expanded)
