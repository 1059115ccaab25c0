"""Every convolution that is not Winograd's against the naive one; the choice between all of them.

Relative L2, measured: direct float64 3e-16, im2col float64 4e-16 and float32 3e-7, depthwise the same.
"""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from naive.conv2d import conv2d as naive

from refsd.kernels import conv2d_im2col as im2col_module
from refsd.kernels import conv2d_packed as conv2d_packed_module
from refsd.kernels.conv2d import conv2d
from refsd.kernels.conv2d_depthwise import conv2d_depthwise
from refsd.kernels.conv2d_fast import choose, conv2d_fast, prepare
from refsd.kernels.conv2d_im2col import conv2d_im2col
from refsd.kernels.conv2d_packed import bytes_of_packed, conv2d_packed, pack_filters

PADDINGS = st.sampled_from([(0, 0, 0, 0), (1, 1, 1, 1), (0, 1, 0, 1), (2, 0, 1, 3)])
PAIRS = st.one_of(st.integers(1, 3), st.tuples(st.integers(1, 3), st.integers(1, 3)))


def image(N, C, H, W, K, R, S, groups=1):
    rng = np.random.default_rng(H * W)
    return rng.standard_normal((N, C, H, W)), rng.standard_normal((K, C // groups, R, S)), rng.standard_normal(K)


def error(y, expected):
    assert y.shape == expected.shape
    return np.linalg.norm(y - expected) / max(np.linalg.norm(expected), 1e-30)


def single(*arrays):
    return tuple(a.astype(np.float32) for a in arrays)


@given(
    N=st.integers(1, 2),
    per_group=st.integers(1, 3),
    filters=st.integers(1, 3),
    groups=st.integers(1, 3),
    H=st.integers(5, 9),
    W=st.integers(5, 33),
    taps=st.sampled_from([(1, 1), (3, 3), (2, 3), (3, 1)]),
    stride=PAIRS,
    dilation=st.sampled_from([1, 2, (1, 2), (2, 1)]),
    padding=PADDINGS,
)
@example(2, 3, 4, 1, 5, 8, (3, 3), 2, 1, (0, 1, 0, 1))
@example(1, 1, 1, 1, 5, 5, (3, 3), 1, 2, (0, 0, 0, 0))
@example(2, 2, 2, 3, 6, 9, (1, 1), 1, 1, (0, 0, 0, 0))
def test_direct_and_im2col(N, per_group, filters, groups, H, W, taps, stride, dilation, padding):
    x, weight, bias = image(N, per_group * groups, H, W, filters * groups, *taps, groups)
    how = (stride, padding, dilation, groups)
    expected = naive(x, weight, bias, *how)
    assert error(conv2d(x, weight, bias, *how), expected) <= 1e-14
    assert error(conv2d_im2col(x, weight, bias, *how), expected) <= 1e-14
    y = conv2d_im2col(*single(x, weight, bias), *how)
    assert y.dtype == np.float32
    assert error(y, expected) <= 1e-6


@given(
    N=st.integers(1, 2),
    C=st.integers(1, 4),
    multiplier=st.integers(1, 2),
    size=st.tuples(st.integers(9, 12), st.integers(5, 20)),
    taps=st.sampled_from([(3, 3), (5, 2), (1, 1)]),
    stride=PAIRS,
    dilation=st.sampled_from([1, (1, 2), (2, 1)]),
    padding=PADDINGS,
)
def test_depthwise(N, C, multiplier, size, taps, stride, dilation, padding):
    x, weight, bias = image(N, C, *size, C * multiplier, *taps, C)
    expected = naive(x, weight, bias, stride, padding, dilation, C)
    assert error(conv2d_depthwise(x, weight, bias, stride, padding, dilation), expected) <= 1e-14
    assert error(conv2d_depthwise(*single(x, weight, bias), stride, padding, dilation), expected) <= 1e-6


@pytest.mark.parametrize("budget", [1, 5000])
def test_blocks_join_without_a_seam(budget, monkeypatch):
    x, weight, bias = image(2, 4, 13, 18, 6, 3, 3, 2)
    monkeypatch.setattr(im2col_module, "_BUDGET", budget)
    y = conv2d_im2col(x, weight, bias, 1, (1, 1, 1, 1), 2, 2)
    assert error(y, naive(x, weight, bias, 1, (1, 1, 1, 1), 2, 2)) <= 1e-14


# C, K, size, side, stride, dilation, groups -> kept, not kept
CHOICES = [
    ((32, 33, 21, 3, 1, 1, 1), "winograd4", "im2col"),
    ((32, 33, 11, 3, 1, 1, 1), "winograd2", "im2col"),
    ((33, 32, 33, 3, 1, 1, 1), "winograd4", "winograd4"),
    ((32, 32, 8, 3, 1, 1, 1), "packed", "im2col"),
    ((4, 32, 40, 3, 1, 1, 1), "packed", "im2col"),
    ((32, 32, 33, 3, 2, 1, 1), "packed", "im2col"),
    ((32, 32, 33, 3, 1, 2, 1), "packed", "im2col"),
    ((64, 64, 33, 3, 1, 1, 2), "im2col", "im2col"),
    ((32, 32, 9, 1, 1, 1, 1), "packed", "matmul"),
    ((32, 32, 9, 1, 2, 1, 1), "packed", "im2col"),
    ((16, 16, 9, 3, 1, 1, 16), "depthwise", "depthwise"),
    ((8, 9, 12, 5, 1, 1, 1), "im2col", "im2col"),
]


@pytest.mark.parametrize(("shape", "kept", "once"), CHOICES)
def test_fast_says_what_it_takes_and_is_right(shape, kept, once):
    C, K, size, side, stride, dilation, groups = shape
    x, weight, bias = image(1, C, size, size + 1, K, side, side, groups)
    padding = (side // 2,) * 4
    expected = naive(x, weight, bias, stride, padding, dilation, groups)
    x, weight, bias = single(x, weight, bias)
    assert choose(x.shape, weight.shape, stride, padding, dilation, groups, kept=False).name == once
    assert error(conv2d_fast(x, weight, bias, stride, padding, dilation, groups), expected) <= 5e-6
    choice = choose(x.shape, weight.shape, stride, padding, dilation, groups)
    assert choice.name == kept and choice.why
    prepared = prepare(weight, choice)
    assert error(conv2d_fast(x, prepared, bias, stride, padding, dilation, groups), expected) <= 5e-6


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("shape", "K", "taps", "stride", "dilation"),
    [
        ((2, 3, 9, 10), 12, 1, 1, 1),
        ((1, 5, 16, 40), 25, 1, 1, 1),
        ((2, 3, 11, 7), 13, 3, 2, 1),
        ((1, 120, 6, 9), 12, 3, 1, 2),
        ((1, 300, 8, 8), 30, 3, 1, 1),
        ((1, 1025, 3, 4), 13, 1, 1, 1),
    ],
)
def test_packed_filters_give_the_sums_of_the_columns(dtype, shape, K, taps, stride, dilation):
    """On integers every sum is exact; sides, filters and terms are no multiples of the blocks'."""
    rng = np.random.default_rng(K)
    x, weight = (rng.integers(-9, 9, s).astype(dtype) for s in (shape, (K, shape[1], taps, taps)))
    bias, padding = rng.integers(-9, 9, K).astype(dtype), (taps // 2, 0, taps // 2, taps // 2)
    expected = conv2d_im2col(x, weight, bias, stride, padding, dilation)
    filters = pack_filters(weight)
    assert filters.nbytes == bytes_of_packed(K, weight[0].size, dtype)
    np.testing.assert_array_equal(conv2d_packed(x, filters, bias, stride, padding, dilation), expected)


@pytest.mark.parametrize(("strip", "columns"), [(1, 4 << 20), (1 << 20, 1_000)])
def test_packed_filters_work_by_strips_and_rows(monkeypatch, strip, columns):
    monkeypatch.setattr(conv2d_packed_module, "_BLOCK", strip)
    monkeypatch.setattr(conv2d_packed_module, "_BUDGET", columns)
    rng = np.random.default_rng(1)
    x, weight, bias = (rng.integers(-9, 9, s).astype(np.float32) for s in ((1, 4, 20, 21), (13, 4, 3, 3), 13))
    expected = conv2d_im2col(x, weight, bias, 1, (1, 1, 1, 1))
    np.testing.assert_array_equal(conv2d_packed(x, pack_filters(weight), bias, 1, (1, 1, 1, 1)), expected)


def test_columns_stay_within_their_budget(monkeypatch):
    seen = []
    layout = im2col_module.im2col
    monkeypatch.setattr(im2col_module, "im2col", lambda *a: (seen.append(a[-1].nbytes), layout(*a)))
    monkeypatch.setattr(im2col_module, "_BUDGET", 40_000)
    x, weight, bias = image(1, 8, 40, 40, 2, 3, 3)
    conv2d_im2col(x, weight, bias, 1, (1, 1, 1, 1))
    assert len(seen) > 1 and max(seen) <= 40_000
