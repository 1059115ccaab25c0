"""Rectifiers by absolute values: exact."""

import numpy as np
import pytest
from naive import relu as naive

from refsd.kernels.relu import leaky_relu, relu

X = np.random.default_rng(0).integers(-64, 64, (2, 3, 5)).astype(np.float64)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_values(dtype):
    x = X.astype(dtype)
    np.testing.assert_array_equal(relu(x), naive.relu(X))
    np.testing.assert_array_equal(leaky_relu(x, 0.25), naive.leaky_relu(X, 0.25))
    assert leaky_relu(x, 0.2).dtype == dtype


def test_nan_stays():
    assert np.isnan(relu(np.array([np.nan]))).all()
