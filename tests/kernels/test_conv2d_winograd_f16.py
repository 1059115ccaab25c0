"""The float16 Winograd against the naive one: both round at the same places, so they differ by float32's rounding,
and where that tips a float16 the other way."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from naive.conv2d import conv2d as naive
from naive.conv2d_winograd_f16 import conv2d_winograd_f16 as naive_f16

from refsd.kernels.conv2d_winograd_f16 import applies, conv2d_winograd_f16


def image(N, C, H, W, K):
    rng = np.random.default_rng(H * W)
    weight = rng.standard_normal((K, C, 3, 3)).astype(np.float16)
    shapes = (N, C, H, W), (K,)
    x, bias = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    return x, weight.astype(np.float32), bias


def error(y, expected):
    assert y.shape == expected.shape
    return np.linalg.norm(y - expected) / np.linalg.norm(expected)


@settings(max_examples=15)
@given(
    N=st.integers(1, 2),
    C=st.integers(1, 3),
    H=st.integers(4, 7),
    W=st.integers(4, 7),
    K=st.integers(1, 2),
    pad=st.integers(0, 1),
)
@example(N=2, C=3, H=5, W=6, K=2, pad=1)
@example(N=1, C=1, H=5, W=4, K=1, pad=0)
def test_against_the_naive_one(N, C, H, W, K, pad):
    x, weight, bias = image(N, C, H, W, K)
    y = conv2d_winograd_f16(x, weight, bias, (pad,) * 4)
    assert y.dtype == np.float32
    assert error(y, naive_f16(x, weight, bias, (pad,) * 4)) <= 3e-4
    assert error(y, naive(x.astype(np.float64), weight, bias, 1, (pad,) * 4)) <= 3e-3


def test_whole_numbers_are_exact():
    """G's halves of even filters are whole; nothing is rounded, so that every bit agrees."""
    rng = np.random.default_rng(0)
    x = rng.integers(-4, 5, (2, 5, 6, 7)).astype(np.float32)
    weight = 4 * rng.integers(-2, 3, (3, 5, 3, 3)).astype(np.float32)
    bias = np.arange(3, dtype=np.float32)
    for pad in (0, 1):
        y = conv2d_winograd_f16(x, weight, bias, (pad,) * 4)
        np.testing.assert_array_equal(y, naive(x, weight, bias, 1, (pad,) * 4))


@pytest.mark.parametrize("size", [(1, 1), (1, 5), (4, 2), (3, 3)])
def test_pictures_smaller_than_a_tile(size):
    x, weight, bias = image(1, 2, *size, 3)
    y = conv2d_winograd_f16(x, weight, bias, (1, 1, 1, 1))
    assert error(y, naive(x.astype(np.float64), weight, bias, 1, (1, 1, 1, 1))) <= 3e-3


def test_the_last_tile_is_shifted_not_cut():
    """Shifted by one, it reads other patches, and rounds other numbers, than a tile that reaches over the edge."""
    x, weight, bias = image(1, 8, 7, 8, 4)
    y = conv2d_winograd_f16(x, weight, bias, (0, 0, 0, 0))
    below = np.pad(x, ((0, 0), (0, 0), (0, 1), (0, 0)))
    cut = conv2d_winograd_f16(below, weight, bias, (0, 0, 0, 0))[:, :, :5]
    np.testing.assert_array_equal(y[:, :, :3], cut[:, :, :3])
    assert not np.array_equal(y[:, :, 4], cut[:, :, 4])


def test_where_it_applies():
    assert applies((4, 4, 3, 3), 1, (1, 1, 1, 1), 1, 1)
    assert applies((4, 4, 3, 3), (1, 1), (0, 0, 0, 0), (1, 1), 1)
    for shape, stride, padding, dilation, groups in (
        ((4, 4, 3, 1), 1, (1, 1, 1, 1), 1, 1),
        ((4, 4, 3, 3), 2, (1, 1, 1, 1), 1, 1),
        ((4, 4, 3, 3), 1, (0, 1, 0, 1), 1, 1),
        ((4, 4, 3, 3), 1, (1, 1, 1, 1), (1, 2), 1),
        ((4, 2, 3, 3), 1, (1, 1, 1, 1), 1, 2),
    ):
        assert not applies(shape, stride, padding, dilation, groups)
