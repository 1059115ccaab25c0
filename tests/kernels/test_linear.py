"""The linear layer against a sum of outer products."""

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from naive.linear import linear as naive

from refsd.kernels.linear import linear


@given(lead=st.sampled_from([(1,), (2, 33), (2, 1, 5), ()]), K=st.integers(1, 80), O=st.integers(1, 40))
@example(lead=(2, 77), K=320, O=33)
def test_shapes(lead, K, O):
    rng = np.random.default_rng(K)
    x, weight, bias = rng.standard_normal((*lead, K)), rng.standard_normal((O, K)), rng.standard_normal(O)
    expected = naive(x, weight, bias)
    np.testing.assert_allclose(linear(x, weight, bias), expected, atol=1e-13 * K)
    np.testing.assert_allclose(linear(x, weight), expected - bias, atol=1e-13 * K)
    y = linear(*(t.astype(np.float32) for t in (x, weight, bias)))
    assert y.dtype == np.float32
    assert np.linalg.norm(y - expected) <= 1e-6 * (1 + np.linalg.norm(expected))
