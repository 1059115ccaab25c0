"""exp: ULPs against a longer float, and the ends of the range."""

import numpy as np
import pytest

from refsd.kernels._jit import kernel
from refsd.kernels.exponential import exp32, exp64


@kernel(parallel=False)
def each64(x):
    y = np.empty_like(x)
    for i in range(x.size):
        y[i] = exp64(x[i])
    return y


@kernel(parallel=False, contract=True)
def each32(x):
    y = np.empty_like(x)
    for i in range(x.size):
        y[i] = exp32(x[i])
    return y


def ulps(y, exact):
    return (np.abs(y - exact) / np.spacing(np.abs(exact).astype(y.dtype))).max()


@pytest.mark.skipif(np.finfo(np.longdouble).eps > 1e-18, reason="the platform has no longer float")
def test_exp64_errs_by_one_ulp_at_most():
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-708, 709, 2000), rng.uniform(-1, 1, 2000), rng.uniform(-1e-9, 1e-9, 99)])
    assert ulps(each64(x), np.exp(x.astype(np.longdouble))) <= 1.0


def test_exp64_at_the_ends():
    x = np.array([-np.inf, -800.0, -745.0, 0.0, 709.0, np.nan])
    np.testing.assert_allclose(each64(x), [0, 0, 5e-324, 1, np.exp(709.0), np.nan], rtol=4e-16)


def test_exp32_errs_by_two_ulp_at_most():
    x = -np.concatenate([np.linspace(0, 87, 4001), np.geomspace(1e-9, 1, 500)]).astype(np.float32)
    assert ulps(each32(x), np.exp(x.astype(np.float64))) <= 2.0


def test_exp32_at_the_ends():
    x = np.array([-np.inf, -1e30, -88.0, 0.0, np.nan], np.float32)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(each32(x), np.array([0, 0, 0, 1, np.nan], np.float32))
