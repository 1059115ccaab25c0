"""Mean and variance against a longer float; the order of summation is fixed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsd.kernels.moments import mean_variance, mean_variance32


@given(n=st.integers(1, 300), mean=st.sampled_from([0.0, 1.0, 1e6]), spread=st.sampled_from([1.0, 1e-4]))
def test_moments(n, mean, spread):
    x = np.random.default_rng(n).normal(mean, spread, n)
    exact = x.astype(np.longdouble)
    m, v = mean_variance(x)
    assert abs(m - exact.mean()) <= 4e-16 * (1 + abs(mean))
    assert abs(v - exact.var()) <= 1e-13 * exact.var() + (1e-15 * mean) ** 2


@given(n=st.integers(1, 300), mean=st.sampled_from([0.0, 1.0, 1e6]), spread=st.sampled_from([1.0, 1e-4]))
def test_one_pass_in_float32(n, mean, spread):
    x = np.random.default_rng(n).normal(mean, spread, n).astype(np.float32)
    exact = x.astype(np.longdouble)
    m, v = mean_variance32(x)
    assert abs(m - exact.mean()) <= 4e-16 * (1 + abs(mean))
    assert abs(v - exact.var()) <= 1e-13 * exact.var()


@pytest.mark.parametrize(("first", "bound"), [(1e2, 1e-10), (1e4, 1e-6)])
def test_one_pass_around_an_outlier(first, bound):
    x = np.random.default_rng(0).standard_normal(100000).astype(np.float32)
    x[0] = first
    _, v = mean_variance32(x)
    assert abs(v / x.astype(np.longdouble).var() - 1) <= bound
