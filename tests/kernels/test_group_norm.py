"""Group normalisation against its naive version; float32 errs by 1e-6 of the largest value at most."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from naive.group_norm import group_norm as naive

from refsd.kernels.group_norm import group_norm


def check(x, num_groups, eps, bound):
    rng = np.random.default_rng(3)
    weight, bias = rng.normal(1, 0.3, x.shape[1]), rng.normal(0, 1, x.shape[1])
    expected = naive(x, weight, bias, num_groups, eps)
    y = group_norm(x, weight.astype(x.dtype), bias.astype(x.dtype), num_groups, eps)
    assert y.dtype == x.dtype and y.shape == x.shape
    assert np.abs(y - expected).max() <= bound * (1 + np.abs(expected).max())


@pytest.mark.smoke
@given(
    N=st.integers(1, 2),
    G=st.sampled_from([1, 2, 8]),
    D=st.integers(1, 5),
    H=st.integers(1, 9),
    W=st.integers(1, 33),
)
@example(N=2, G=1, D=1, H=1, W=1)
@example(N=2, G=8, D=5, H=7, W=33)
def test_shapes(N, G, D, H, W):
    x = np.random.default_rng(N * W).normal(0.5, 2, (N, G * D, H, W))
    check(x, G, 1e-5, 1e-14)
    check(x.astype(np.float32), G, 1e-5, 1e-6)


@pytest.mark.parametrize(
    ("mean", "deviation", "bound"), [(0.0, 1e-6, 1e-13), (1e5, 1.0, 1e-10), (-3e3, 1e-2, 1e-10)]
)
def test_tiny_variance_and_large_mean(mean, deviation, bound):
    x = np.random.default_rng(5).normal(mean, deviation, (2, 6, 5, 77))
    check(x, 3, 1e-6, bound)
    check(x.astype(np.float32), 3, 1e-6, 1e-6)


def test_a_constant_group_gives_its_bias():
    x = np.full((1, 4, 3, 3), 0.1)
    y = group_norm(x, np.ones(4), np.arange(4.0), 2, 1e-5)
    np.testing.assert_allclose(y, np.broadcast_to(np.arange(4.0)[:, None, None], x.shape), atol=1e-13)
