"""SD3's table of positions against complex rotations."""

import numpy as np
import pytest
from naive.sincos_positions import sincos_positions as naive

from refsd.kernels.sincos_positions import crop_positions, sincos_positions


def test_values_and_order():
    rows, columns = np.array([0.0, 1.5, 7.0]), np.array([0.0, 2.0])
    y = sincos_positions(12, rows, columns)
    np.testing.assert_allclose(y, naive(12, rows, columns), atol=1e-15)
    np.testing.assert_allclose(y[1, :3], np.sin(2 * 10000.0 ** (-np.arange(3) / 3)), atol=1e-15)


@pytest.mark.parametrize(("height", "width"), [(5, 5), (2, 3), (1, 4), (3, 2)])
def test_the_crop_is_the_centre(height, width):
    table = np.arange(25 * 2).reshape(25, 2)
    top, left = (5 - height) // 2, (5 - width) // 2
    y = crop_positions(table, height, width)
    expected = [table[5 * (top + h) + left + w] for h in range(height) for w in range(width)]
    np.testing.assert_array_equal(y, expected)


def test_a_picture_that_is_too_large():
    with pytest.raises(ValueError, match="6 x 2 patches do not fit a table of 5 x 5"):
        crop_positions(np.zeros((25, 2)), 6, 2)
