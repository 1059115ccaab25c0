"""Layer normalisation against its naive version; float32 errs by 1e-6 of the largest value at most."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from naive.layer_norm import layer_norm as naive

from refsd.kernels.layer_norm import layer_norm


def check(x, eps, bound):
    rng = np.random.default_rng(3)
    weight, bias = rng.normal(1, 0.3, x.shape[1]), rng.normal(0, 1, x.shape[1])
    expected = naive(x, weight, bias, eps)
    y = layer_norm(x, weight.astype(x.dtype), bias.astype(x.dtype), eps)
    assert y.dtype == x.dtype and y.shape == x.shape
    assert np.abs(y - expected).max() <= bound * (1 + np.abs(expected).max())


@given(M=st.integers(1, 33), D=st.integers(1, 200))
@example(M=77, D=320)
@example(M=1, D=1)
def test_shapes(M, D):
    x = np.random.default_rng(D).normal(-0.5, 2, (M, D))
    check(x, 1e-5, 1e-13)
    check(x.astype(np.float32), 1e-5, 1e-6)


@pytest.mark.parametrize(("mean", "deviation", "bound"), [(0.0, 1e-6, 1e-13), (1e5, 1.0, 1e-10)])
def test_tiny_variance_and_large_mean(mean, deviation, bound):
    x = np.random.default_rng(5).normal(mean, deviation, (3, 77))
    check(x, 1e-6, bound)
    check(x.astype(np.float32), 1e-6, 1e-6)
