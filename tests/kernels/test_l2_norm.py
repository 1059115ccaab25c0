"""Unit length against NumPy's norm."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from naive.l2_norm import l2_norm as naive

from refsd.kernels.l2_norm import l2_norm


@given(M=st.integers(1, 9), D=st.integers(1, 140), size=st.sampled_from([1.0, 1e-7, 1e6]))
def test_shapes(M, D, size):
    x = np.random.default_rng(D).standard_normal((M, D)) * size
    np.testing.assert_allclose(l2_norm(x, 1e-6), naive(x, 1e-6), rtol=1e-14)
    y = l2_norm(x.astype(np.float32), 1e-6)
    assert y.dtype == np.float32
    np.testing.assert_allclose(y, naive(x, 1e-6), rtol=3e-7)


def test_eps_is_a_floor_not_a_term():
    np.testing.assert_array_equal(l2_norm(np.array([[0.0, 0.0], [3e-3, 4e-3]]), 1e-2), [[0, 0], [0.3, 0.4]])
    np.testing.assert_allclose(l2_norm(np.array([[3e-2, 4e-2]]), 1e-2), [[0.6, 0.8]], rtol=1e-15)
