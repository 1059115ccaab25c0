"""An adaptive solver's error against arrays."""

import numpy as np
import pytest
from naive import step_error as naive

from refsd.kernels.step_error import step_error


@pytest.mark.parametrize("n", [1, 7, 1023, 1024, 1025, 2500])
@pytest.mark.parametrize(("dtype", "rtol"), [(np.float64, 1e-13), (np.float32, 1e-5)])
def test_against_naive(n, dtype, rtol):
    low, high, previous = np.random.default_rng(n).standard_normal((3, 1, n, 2)).astype(dtype)
    for tolerance in (0.0078, 0.5):
        expected = naive.step_error(low, high, previous, tolerance, 0.05)
        assert abs(step_error(low, high, previous, tolerance, 0.05) / expected - 1) < rtol


def test_shapes_must_be_equal():
    x, y = np.ones((1, 2, 3, 1)), np.ones((1, 3, 2, 1))
    for arrays in ((x, y, x), (x, x, y), (y, x, x)):
        with pytest.raises(ValueError, match="differ in shape"):
            step_error(*arrays, 0.1, 0.1)
