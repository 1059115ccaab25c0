"""Upsampling against a Kronecker product: exact."""

import numpy as np
import pytest
from naive.resample import upsample_nearest as naive

from refsd.kernels.resample import upsample_nearest


@pytest.mark.parametrize("shape", [(2, 3, 4, 7), (1, 1, 1, 1), (1, 2, 33, 5)])
@pytest.mark.parametrize("factor", [1, 2, 3])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_shapes(shape, factor, dtype):
    x = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    y = upsample_nearest(x, factor)
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, naive(x, factor))
