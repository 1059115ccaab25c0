"""Weighted sums against a product of matrices."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes
from naive import combine as naive

from refsd.kernels.combine import combine

# Each number of axes is a compilation of its own.
SHAPES = st.sampled_from([0, 1, 4]).flatmap(lambda n: array_shapes(min_dims=n, max_dims=n, max_side=4))


@given(
    shape=SHAPES,
    k=st.integers(1, 9),
    seed=st.integers(0, 2**32 - 1),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_against_naive(shape, k, seed, dtype):
    rng = np.random.default_rng(seed)
    weights = [float(w) for w in rng.standard_normal(k).astype(np.float32) * 10.0 ** rng.integers(-3, 4, k)]
    arrays = [np.asarray(x) for x in rng.standard_normal((k, *shape)).astype(dtype)]
    y = combine(weights, arrays)
    assert y.dtype == dtype and y.shape == shape
    size = naive.combine(np.abs(weights), np.abs(arrays))
    assert (np.abs(y - naive.combine(weights, arrays)) <= k * np.finfo(dtype).eps * size).all()


@pytest.mark.parametrize("k", range(1, 7))
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_each_product_and_sum_rounds_once_from_left_to_right(k, dtype):
    rng = np.random.default_rng(k)
    weights, arrays = rng.standard_normal(k).tolist(), list(rng.standard_normal((k, 2, 19)).astype(dtype))
    expected = arrays[0] * dtype(weights[0])
    for weight, x in zip(weights[1:], arrays[1:], strict=True):
        expected = expected + x * dtype(weight)
    np.testing.assert_array_equal(combine(weights, arrays), expected)


def test_layouts_and_dtypes():
    """Transposed, strided and read-only arrays, and float32 noise for a float64 state and the reverse."""
    x, y = np.random.default_rng(0).standard_normal((2, 6, 5))
    strided = np.repeat(y, 2, axis=1)[:, ::2]
    fortran = np.asfortranarray(x)
    strided.flags.writeable = False
    np.testing.assert_array_equal(combine((2.0, 3.0), (fortran, strided)), 2 * x + 3 * y)
    assert combine((2.0,), (fortran,)).flags.c_contiguous
    single = y.astype(np.float32)
    np.testing.assert_array_equal(combine((2.0, 3.0), (x, single)), 2 * x + 3 * single.astype(np.float64))
    z = combine((2.0, 3.0), (single, x))
    assert z.dtype == np.float32
    np.testing.assert_array_equal(z, 2 * single + 3 * x.astype(np.float32))


def test_the_arrays_are_left_alone():
    x, y = np.ones(3), np.full(3, 2.0)
    z = combine((0.0, 1.0), (x, y))
    assert z is not x and z is not y
    assert (x == 1).all() and (y == 2).all() and (z == 2).all()


@pytest.mark.parametrize("other", [(4, 3), (12,), (3, 1), (3, 4, 1), ()])
def test_shapes_must_be_equal(other):
    """Not of equal size alone, and nothing is broadcast: the loop would read beyond the smaller array."""
    # Each mix of numbers of axes is a compilation of its own.
    for place in range(2, 7) if len(other) == 2 else (2, 6):
        arrays = [np.ones((3, 4))] * (place - 1) + [np.ones(other)]
        with pytest.raises(ValueError, match="differ in shape"):
            combine([1.0] * place, arrays)


def test_every_array_has_its_weight():
    with pytest.raises(ValueError, match="1 weights of 2 arrays"):
        combine([1.0], [np.ones(2)] * 2)
