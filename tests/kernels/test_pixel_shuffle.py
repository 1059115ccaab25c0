"""Pixels into channels against strided slices: exact."""

import numpy as np
import pytest
from naive import pixel_shuffle as naive

from refsd.kernels.pixel_shuffle import pixel_shuffle, pixel_unshuffle


@pytest.mark.parametrize("shape", [(2, 3, 6, 12), (1, 1, 2, 2)])
@pytest.mark.parametrize("factor", [1, 2])
def test_there_and_back(shape, factor):
    x = np.random.default_rng(0).standard_normal(shape)
    y = pixel_unshuffle(x, factor)
    np.testing.assert_array_equal(y, naive.pixel_unshuffle(x, factor))
    np.testing.assert_array_equal(naive.pixel_shuffle(y, factor), x)
    np.testing.assert_array_equal(pixel_shuffle(y, factor), x)
