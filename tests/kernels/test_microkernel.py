"""The product in registers against NumPy's; integers make every sum exact."""

import numpy as np
import pytest

from refsd.kernels.conv2d_winograd import multiply
from refsd.kernels.microkernel import ROWS, lanes


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [1, 63, 64, 65, 200])
def test_every_panel_and_nothing_else_is_written(dtype, n):
    rng = np.random.default_rng(n)
    width = lanes(dtype)
    u = rng.integers(-9, 9, (3, 2, n, ROWS)).astype(dtype)
    v = rng.integers(-9, 9, (3, 2, n + 1, width)).astype(dtype)
    m = np.full((3, 2 * ROWS, 3 * width), np.nan, dtype)
    multiply(u, v, m)
    expected = np.einsum("pkcr,ptcl->pkrtl", u, v[:, :, :n]).reshape(3, 2 * ROWS, 2 * width)
    np.testing.assert_array_equal(m[:, :, : 2 * width], expected)
    assert np.isnan(m[:, :, 2 * width :]).all()


@pytest.mark.jitted
def test_the_sum_goes_by_sixty_four():
    """1, then 127 terms that float32 loses beside 1: those of the second block add up among themselves."""
    u = np.full((1, 1, 128, ROWS), 2.0**-25, np.float32)
    u[0, 0, 0] = 1
    v = np.ones((1, 1, 128, lanes(np.float32)), np.float32)
    m = np.zeros((1, ROWS, v.shape[3]), np.float32)
    multiply(u, v, m)
    assert (m == 1 + 64 * 2.0**-25).all()
