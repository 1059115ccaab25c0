"""tanh against its exponentials in a longer float."""

import numpy as np
from naive.tanh import tanh as naive

from refsd.kernels.tanh import tanh


def test_units_in_the_last_place():
    x = np.concatenate([np.linspace(-22, 22, 5001), np.geomspace(1e-300, 1, 501), [0.625]])
    y = tanh(x)
    assert (np.abs(y - naive(x)) / np.spacing(np.abs(naive(x)).astype(np.float64))).max() <= 2
    np.testing.assert_array_equal(tanh(-x), -y)
    np.testing.assert_array_equal(
        tanh(x.astype(np.float32)), tanh(x.astype(np.float32).astype(np.float64)).astype("f4")
    )


def test_the_far_ends():
    x = np.array([-np.inf, -1e30, 0, 1e30, np.inf, np.nan])
    np.testing.assert_array_equal(tanh(x), [-1, -1, 0, 1, 1, np.nan])
