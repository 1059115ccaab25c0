"""Softmax against its naive version; float32 errs by 1e-7 at most."""

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from naive.softmax import softmax as naive

from refsd.kernels.softmax import softmax


@given(M=st.integers(1, 9), L=st.integers(1, 80), spread=st.sampled_from([0.1, 3.0, 200.0]))
@example(M=2, L=1, spread=1.0)
def test_shapes(M, L, spread):
    x = np.random.default_rng(L).normal(5, spread, (M, L))
    np.testing.assert_allclose(softmax(x), naive(x), rtol=1e-13 * max(1, spread), atol=1e-300)
    y = softmax(x.astype(np.float32))
    assert y.dtype == np.float32
    np.testing.assert_allclose(y, naive(x.astype(np.float32).astype(np.float64)), atol=1e-7)


def test_masked_entries_are_zero_and_a_masked_row_gives_zeros():
    x = np.array([[0.0, -np.inf, 1.0], [-np.inf, -np.inf, -np.inf], [-np.inf, 2.0, -np.inf]])
    y = softmax(x)
    np.testing.assert_array_equal(y[1:], [[0, 0, 0], [0, 1, 0]])
    np.testing.assert_allclose(y[0], naive(x[0]), rtol=1e-15)


def test_nan_is_not_hidden():
    y = softmax(np.array([[0.0, np.nan], [0.0, 0.0]]))
    assert np.isnan(y[0]).all()
    np.testing.assert_array_equal(y[1], [0.5, 0.5])
