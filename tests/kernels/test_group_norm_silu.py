"""The fused kernel against one after the other."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from naive.group_norm_silu import group_norm_silu as naive

from refsd.kernels.group_norm_silu import group_norm_silu


@given(
    N=st.integers(1, 2), G=st.sampled_from([1, 4]), D=st.integers(1, 3), H=st.integers(1, 5), W=st.integers(1, 40)
)
def test_shapes(N, G, D, H, W):
    rng = np.random.default_rng(H * W)
    x, weight, bias = rng.normal(0.5, 2, (N, G * D, H, W)), rng.normal(1, 0.3, G * D), rng.normal(0, 1, G * D)
    expected = naive(x, weight, bias, G, 1e-5)
    np.testing.assert_allclose(group_norm_silu(x, weight, bias, G, 1e-5), expected, rtol=1e-12, atol=1e-14)
    y = group_norm_silu(*(a.astype(np.float32) for a in (x, weight, bias)), G, 1e-5)
    assert y.dtype == np.float32 and y.shape == x.shape
    assert np.abs(y - expected).max() <= 1e-6 * (1 + np.abs(expected).max())


def test_a_large_mean_costs_nothing():
    x = np.random.default_rng(5).normal(1e5, 1, (1, 4, 5, 77)).astype(np.float32)
    expected = naive(x.astype(np.float64), np.ones(4), np.zeros(4), 2, 1e-6)
    y = group_norm_silu(x, np.ones(4, np.float32), np.zeros(4, np.float32), 2, 1e-6)
    np.testing.assert_allclose(y, expected, atol=1e-6)
