"""Every convolution against the naive one.

Relative L2, measured: direct float64 3e-16, im2col float64 4e-16 and float32 3e-7, Winograd float64
2e-15 and float32 3e-6.
"""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from naive.conv2d import conv2d as naive

from refsd.kernels import conv2d_im2col as im2col_module
from refsd.kernels import conv2d_winograd as winograd_module
from refsd.kernels.conv2d import conv2d
from refsd.kernels.conv2d_fast import conv2d_fast
from refsd.kernels.conv2d_im2col import conv2d_im2col
from refsd.kernels.conv2d_winograd import conv2d_winograd

PADDINGS = st.sampled_from([(0, 0, 0, 0), (1, 1, 1, 1), (0, 1, 0, 1), (2, 0, 1, 3)])


def image(N, C, H, W, K, R, S):
    rng = np.random.default_rng(H * W)
    return rng.standard_normal((N, C, H, W)), rng.standard_normal((K, C, R, S)), rng.standard_normal(K)


def error(y, expected):
    assert y.shape == expected.shape
    return np.linalg.norm(y - expected) / max(np.linalg.norm(expected), 1e-30)


def single(*arrays):
    return tuple(a.astype(np.float32) for a in arrays)


@given(
    N=st.integers(1, 2),
    C=st.integers(1, 4),
    H=st.integers(3, 9),
    W=st.integers(3, 33),
    K=st.integers(1, 5),
    filter=st.sampled_from([(1, 1), (3, 3), (2, 3), (3, 1)]),
    stride=st.integers(1, 3),
    padding=PADDINGS,
)
@example(N=2, C=3, H=5, W=8, K=4, filter=(3, 3), stride=2, padding=(0, 1, 0, 1))
@example(N=1, C=1, H=3, W=3, K=1, filter=(3, 3), stride=1, padding=(0, 0, 0, 0))
def test_direct_and_im2col(N, C, H, W, K, filter, stride, padding):
    x, weight, bias = image(N, C, H, W, K, *filter)
    expected = naive(x, weight, bias, stride, padding)
    assert error(conv2d(x, weight, bias, stride, padding), expected) <= 1e-14
    assert error(conv2d_im2col(x, weight, bias, stride, padding), expected) <= 1e-14
    y = conv2d_im2col(*single(x, weight, bias), stride, padding)
    assert y.dtype == np.float32
    assert error(y, expected) <= 1e-6


@given(
    N=st.integers(1, 2),
    C=st.integers(1, 5),
    H=st.integers(3, 14),
    W=st.integers(3, 33),
    K=st.integers(1, 5),
    padding=PADDINGS,
)
@example(N=2, C=4, H=4, W=7, K=3, padding=(1, 1, 1, 1))
@example(N=1, C=1, H=3, W=3, K=1, padding=(0, 0, 0, 0))
def test_winograd(N, C, H, W, K, padding):
    x, weight, bias = image(N, C, H, W, K, 3, 3)
    expected = naive(x, weight, bias, 1, padding)
    assert error(conv2d_winograd(x, weight, bias, padding), expected) <= 1e-13
    y = conv2d_winograd(*single(x, weight, bias), padding)
    assert y.dtype == np.float32
    assert error(y, expected) <= 5e-6


@pytest.mark.parametrize("budget", [1, 5000])
def test_blocks_join_without_a_seam(budget, monkeypatch):
    x, weight, bias = image(2, 3, 13, 18, 5, 3, 3)
    expected = naive(x, weight, bias, 1, (1, 1, 1, 1))
    monkeypatch.setattr(im2col_module, "_BUDGET", budget)
    monkeypatch.setattr(winograd_module, "_BUDGET", budget)
    assert error(conv2d_im2col(x, weight, bias, 1, (1, 1, 1, 1)), expected) <= 1e-14
    assert error(conv2d_winograd(x, weight, bias, (1, 1, 1, 1)), expected) <= 1e-13


@pytest.mark.parametrize(
    ("C", "K", "size", "side", "stride"),
    [(16, 16, 32, 3, 1), (16, 17, 20, 3, 1), (16, 16, 33, 3, 2), (16, 16, 32, 1, 1)],
)
def test_fast_is_right_whichever_it_takes(C, K, size, side, stride):
    x, weight, bias = image(1, C, size, size + 1, K, side, side)
    padding = (side // 2,) * 4
    y = conv2d_fast(*single(x, weight, bias), stride, padding)
    assert error(y, naive(x, weight, bias, stride, padding)) <= 5e-6


def test_columns_stay_within_their_budget(monkeypatch):
    seen = []
    layout = im2col_module.im2col
    monkeypatch.setattr(im2col_module, "im2col", lambda *a: (seen.append(a[-1].nbytes), layout(*a)))
    monkeypatch.setattr(im2col_module, "_BUDGET", 40_000)
    x, weight, bias = image(1, 8, 40, 40, 2, 3, 3)
    conv2d_im2col(x, weight, bias, 1, (1, 1, 1, 1))
    assert len(seen) > 1 and max(seen) <= 40_000
