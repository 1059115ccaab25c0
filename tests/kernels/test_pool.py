"""Pooling against windows of an image bordered by NaN."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from naive import pool as naive

from refsd.kernels import pool

NAMES = ("avg_pool2d", "avg_pool2d_inside", "max_pool2d")


@pytest.mark.parametrize("name", NAMES)
@given(
    size=st.tuples(st.integers(4, 9), st.integers(4, 9)),
    kernel_size=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    wide=st.booleans(),
)
def test_any_window(name, size, kernel_size, stride, wide):
    padding = tuple(k // 2 if wide else 0 for k in kernel_size)
    x = np.random.default_rng(0).standard_normal((2, 2, *size))
    y = getattr(pool, name)(x, kernel_size, stride, padding)
    np.testing.assert_allclose(y, getattr(naive, name)(x, kernel_size, stride, padding), atol=1e-15)
    single = getattr(pool, name)(x.astype(np.float32), kernel_size, stride, padding)
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, y, atol=1e-6)


def test_nan_wins():
    x = np.zeros((1, 1, 2, 2))
    x[0, 0, 1, 0] = np.nan
    assert np.isnan(pool.max_pool2d(x, (2, 2), (2, 2), (0, 0))).all()
