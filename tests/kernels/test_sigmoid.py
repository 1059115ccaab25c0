"""The logistic function against a longer float, in units in the last place."""

import numpy as np
from naive.sigmoid import sigmoid as naive

from refsd.kernels.sigmoid import sigmoid, silu32

X = np.concatenate([np.linspace(-87, 40, 4001), np.geomspace(1e-30, 1, 77), [0.0]])


def ulps(y, expected):
    return (np.abs(y - expected) / np.spacing(expected.astype(y.dtype))).max()


def test_both_dtypes():
    assert ulps(sigmoid(X), naive(X)) <= 2
    single = X.astype(np.float32)
    y = sigmoid(single)
    assert y.dtype == np.float32
    assert ulps(y, naive(single)) <= 3


def test_the_far_ends():
    for dtype in (np.float64, np.float32):
        x = np.array([-np.inf, -1e30, 0, 1e30, np.inf, np.nan], dtype)
        np.testing.assert_array_equal(sigmoid(x), [0, 0, 0.5, 1, 1, np.nan])


def test_silu_of_float32():
    x = np.linspace(-20, 40, 777).astype(np.float32)
    y = np.array([silu32(v) for v in x], np.float32)
    assert ulps(y, naive(x) * x) <= 4
    assert silu32(np.float32(-1e30)) == 0 and np.isnan(silu32(np.float32(np.nan)))


def test_any_shape_keeps_its_shape():
    x = np.linspace(-3, 3, 30).reshape(2, 3, 1, 5)
    np.testing.assert_array_equal(sigmoid(x), sigmoid(x.ravel()).reshape(x.shape))
