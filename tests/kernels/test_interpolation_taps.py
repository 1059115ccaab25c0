"""Taps: weights that sum to one, pixels that exist."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsd.kernels import interpolation_taps as taps

MAKERS = (taps.linear, taps.linear_corners, taps.cubic, taps.cubic_corners, taps.triangle, taps.wide_cubic)


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
@given(size=st.integers(1, 30), new=st.integers(1, 30))
def test_weights_and_indices(make, size, new):
    index, weight = make(size, new)
    assert index.shape == weight.shape and len(index) == new
    assert index.min() >= 0 and index.max() < size
    np.testing.assert_allclose(weight.sum(axis=1), 1, rtol=1e-14)
