"""exp: ULPs against a longer float, and the ends of the range."""

import numpy as np
import pytest

from refsd.kernels._jit import kernel
from refsd.kernels.exponential import exp, exp2_32_flushed, exp2_flushed, exp32, exp32_flushed, exp64


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


@kernel(parallel=False)
def each_flushed(x):
    y = np.empty_like(x)
    for i in range(x.size):
        y[i] = exp32_flushed(x[i])
    return y


@kernel(parallel=False, contract=True)
def each_power(x):
    y = np.empty_like(x)
    for i in range(x.size):
        y[i] = exp2_32_flushed(x[i])
    return y


@kernel(parallel=False)
def each_power_of_its_dtype(x):
    y = np.empty_like(x)
    for i in range(x.size):
        y[i] = exp2_flushed(x[i])
    return y


@kernel(parallel=False)
def each(x):
    y = np.empty_like(x)
    for i in range(x.size):
        y[i] = exp(x[i])
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


# Found by test_every_float32.py: the arguments that err most.
WORST = (-5.8779, 26.728634, 1.7497677)


def test_exp32_errs_by_little_more_than_one_ulp():
    x = np.concatenate([np.linspace(-103.9, 88.7, 4001), np.geomspace(1e-9, 1, 500), WORST]).astype(np.float32)
    exact = np.exp(x.astype(np.float64))
    assert ulps(each32(x), exact) <= 1.02
    below = x[(x <= 0) & (x >= -87.3)]
    assert ulps(each_flushed(below), np.exp(below.astype(np.float64))) <= 1.02


def test_exp32_at_the_ends():
    x = np.array([-np.inf, -1e30, -104.0, 0.0, 89.0, np.inf, np.nan], np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        np.testing.assert_array_equal(each32(x), np.array([0, 0, 0, 1, np.inf, np.inf, np.nan], np.float32))
        np.testing.assert_array_equal(each_flushed(x[[0, 1, 2, 3, 6]]), np.array([0, 0, 0, 1, np.nan], np.float32))


def test_exp2_errs_by_little_more_than_one_ulp():
    # The last, found by test_every_float32.py, errs most: by 0.952 ULP with FMA, by 1.057 without.
    x = np.concatenate([np.linspace(-125.9, 0, 4001), -np.geomspace(1e-9, 1, 500), [-0.49600968]])
    x = x.astype(np.float32)
    assert ulps(each_power(x), np.exp2(x.astype(np.float64))) <= 1.06
    y = np.linspace(-1000, 0, 4001)
    assert np.abs(each_power_of_its_dtype(y) - np.exp2(y)).max() <= 1.01 * np.finfo(float).eps


def test_exp2_at_the_ends():
    x = np.array([-np.inf, -1e30, -126.6, -126.0, 0.0, np.nan], np.float32)
    np.testing.assert_array_equal(each_power(x), np.array([0, 0, 0, 2.0**-126, 1, np.nan], np.float32))


def test_by_dtype_each_number_meets_its_own():
    for dtype in (np.float32, np.float64):
        x = np.linspace(-3, 3, 7).astype(dtype)
        y = each(x)
        np.testing.assert_array_equal(y, each32(x) if dtype == np.float32 else each64(x))
