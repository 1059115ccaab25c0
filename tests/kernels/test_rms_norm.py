"""Root-mean-square normalisation against its naive version."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from naive.rms_norm import rms_norm as naive

from refsd.kernels.rms_norm import rms_norm


@given(M=st.integers(1, 33), D=st.integers(1, 140))
def test_shapes(M, D):
    rng = np.random.default_rng(D)
    x, weight = rng.normal(0.5, 2, (M, D)), rng.normal(1, 0.3, D)
    np.testing.assert_allclose(rms_norm(x, weight, 1e-6), naive(x, weight, 1e-6), rtol=1e-14)
    y = rms_norm(x.astype(np.float32), weight.astype(np.float32), 1e-6)
    assert y.dtype == np.float32
    np.testing.assert_allclose(y, naive(x, weight, 1e-6), rtol=5e-7)


def test_without_a_weight():
    x = np.random.default_rng(0).standard_normal((3, 40))
    np.testing.assert_array_equal(rms_norm(x, None, 1e-6), rms_norm(x, np.ones(40), 1e-6))
