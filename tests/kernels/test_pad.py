"""Borders against np.pad: exact. A picture without edges can be tiled."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from naive import pad as naive

from refsd.kernels import pad
from refsd.kernels.conv2d import conv2d

SIDE = st.integers(0, 3)


@pytest.mark.parametrize("name", ["pad_zero", "pad_replicate", "pad_reflect", "pad_circular"])
@given(padding=st.tuples(SIDE, SIDE, SIDE, SIDE))
def test_any_border(name, padding):
    x = np.random.default_rng(0).standard_normal((2, 2, 4, 5))
    np.testing.assert_array_equal(getattr(pad, name)(x, padding), naive.pad(name, x, padding))


@given(down=st.integers(-9, 9), right=st.integers(-9, 9))
def test_roll(down, right):
    x = np.random.default_rng(0).standard_normal((1, 2, 4, 5))
    np.testing.assert_array_equal(pad.roll(x, down, right), naive.roll(x, down, right))


def test_a_convolution_of_a_picture_without_edges_moves_with_it():
    rng = np.random.default_rng(0)
    x, weight = rng.standard_normal((1, 2, 5, 6)), rng.standard_normal((3, 2, 3, 3))

    def seamless(picture):
        return conv2d(pad.pad_circular(picture, (1, 1, 1, 1)), weight, np.zeros(3), 1, (0, 0, 0, 0))

    np.testing.assert_allclose(seamless(pad.roll(x, 2, -1)), pad.roll(seamless(x), 2, -1), atol=1e-14)
