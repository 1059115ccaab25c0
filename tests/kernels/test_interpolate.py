"""Interpolation against np.interp and sums over every pixel."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from naive.interpolate import resize as naive

from refsd.kernels import interpolate

NAMES = [f"resize_{kind}{how}" for kind in ("bilinear", "bicubic") for how in ("", "_corners", "_antialias")]


@pytest.mark.parametrize("name", NAMES)
@given(H=st.integers(1, 7), W=st.integers(1, 7), P=st.integers(1, 9), Q=st.integers(1, 9))
def test_any_size(name, H, W, P, Q):
    x = np.random.default_rng(H).standard_normal((1, 2, H, W))
    expected = naive(name, x, P, Q)
    np.testing.assert_allclose(getattr(interpolate, name)(x, P, Q), expected, atol=1e-13)
    y = getattr(interpolate, name)(x.astype(np.float32), P, Q)
    assert y.dtype == np.float32
    np.testing.assert_allclose(y, expected, atol=2e-6)


@pytest.mark.parametrize("name", [name for name in NAMES if not name.endswith("corners")])
@given(H=st.integers(2, 7), W=st.integers(2, 7), down=st.floats(0.5, 2.5), across=st.floats(0.5, 2.5))
def test_any_factor(name, H, W, down, across):
    """The step is 1 / factor, whatever the size was rounded down to."""
    x = np.random.default_rng(H).standard_normal((1, 2, H, W))
    size = int(H * down), int(W * across)
    expected = naive(name, x, *size, (down, across))
    np.testing.assert_allclose(getattr(interpolate, name)(x, *size, (down, across)), expected, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_a_flat_picture_stays_flat_and_the_same_size_is_the_same_picture(name):
    resize = getattr(interpolate, name)
    np.testing.assert_allclose(resize(np.full((1, 1, 4, 5), 3.0), 7, 2), 3, rtol=1e-14)
    x = np.random.default_rng(0).standard_normal((1, 2, 4, 5))
    np.testing.assert_allclose(resize(x, 4, 5), x, atol=1e-15)
