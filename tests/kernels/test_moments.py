"""Mean and variance against a longer float; the order of summation is fixed."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from refsd.kernels.moments import mean_variance


@given(n=st.integers(1, 300), mean=st.sampled_from([0.0, 1.0, 1e6]), spread=st.sampled_from([1.0, 1e-4]))
def test_moments(n, mean, spread):
    x = np.random.default_rng(n).normal(mean, spread, n)
    exact = x.astype(np.longdouble)
    m, v = mean_variance(x)
    assert abs(m - exact.mean()) <= 4e-16 * (1 + abs(mean))
    assert abs(v - exact.var()) <= 1e-13 * exact.var() + (1e-15 * mean) ** 2
