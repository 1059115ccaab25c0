"""Resampling by taking pixels: exact."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from naive import resample as naive

from refsd.kernels.resample import resize_nearest, resize_nearest_exact, upsample_nearest


@pytest.mark.parametrize("shape", [(2, 3, 4, 7), (1, 1, 1, 1), (1, 2, 33, 5)])
@pytest.mark.parametrize("factor", [1, 2, 3])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_shapes(shape, factor, dtype):
    x = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    y = upsample_nearest(x, factor)
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, naive.upsample_nearest(x, factor))


@given(H=st.integers(1, 12), W=st.integers(1, 12), P=st.integers(1, 30), Q=st.integers(1, 30))
def test_any_size(H, W, P, Q):
    x = np.random.default_rng(0).standard_normal((1, 2, H, W))
    np.testing.assert_array_equal(resize_nearest(x, P, Q), naive.resize_nearest(x, P, Q))
    np.testing.assert_array_equal(resize_nearest_exact(x, P, Q), naive.resize_nearest_exact(x, P, Q))


def test_a_whole_factor_is_both():
    x = np.random.default_rng(0).standard_normal((1, 2, 3, 5))
    np.testing.assert_array_equal(resize_nearest(x, 9, 15), upsample_nearest(x, 3))
    np.testing.assert_array_equal(resize_nearest_exact(x, 9, 15), upsample_nearest(x, 3))
