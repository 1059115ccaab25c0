"""Both three-dimensional convolutions against the naive one, and against conv2d where there is one frame."""

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from naive.conv2d import conv2d as naive2d
from naive.conv3d import conv3d as naive

from refsd.kernels.conv2d_fast import conv2d_fast
from refsd.kernels.conv3d import conv3d
from refsd.kernels.conv3d_frames import conv3d_frames


def volume(N, C, D, H, W, K, taps, groups=1):
    rng = np.random.default_rng(D * H * W)
    return (
        rng.standard_normal((N, C, D, H, W)),
        rng.standard_normal((K, C // groups, *taps)),
        rng.standard_normal(K),
    )


def error(y, expected):
    assert y.shape == expected.shape
    return np.linalg.norm(y - expected) / max(np.linalg.norm(expected), 1e-30)


@given(
    N=st.integers(1, 2),
    per_group=st.integers(1, 2),
    filters=st.integers(1, 2),
    groups=st.integers(1, 2),
    size=st.tuples(st.integers(3, 5), st.integers(3, 6), st.integers(3, 7)),
    taps=st.sampled_from([(1, 1, 1), (3, 3, 3), (2, 1, 3), (3, 1, 1), (1, 3, 3)]),
    stride=st.sampled_from([1, 2, (1, 2, 2), (2, 1, 3)]),
    dilation=st.sampled_from([1, (1, 2, 1), (2, 1, 1)]),
    padding=st.sampled_from([(1, 1, 1, 1, 1, 1), (2, 0, 1, 1, 1, 1), (2, 2, 2, 1, 0, 3)]),
)
@example(2, 2, 2, 2, (5, 6, 7), (3, 3, 3), (2, 1, 2), (1, 1, 1), (2, 0, 1, 1, 0, 1))
def test_both_against_the_naive_one(N, per_group, filters, groups, size, taps, stride, dilation, padding):
    x, weight, bias = volume(N, per_group * groups, *size, filters * groups, taps, groups)
    how = (stride, padding, dilation, groups)
    expected = naive(x, weight, bias, *how)
    assert error(conv3d(x, weight, bias, *how), expected) <= 1e-14
    assert error(conv3d_frames(x, weight, bias, *how), expected) <= 1e-14


def test_causal_padding_sees_no_later_frame():
    x, weight, bias = volume(1, 2, 4, 5, 6, 3, (3, 3, 3))
    causal = (2, 0, 1, 1, 1, 1)
    before = conv3d_frames(x, weight, bias, 1, causal)
    x[:, :, 2:] += 1
    after = conv3d_frames(x, weight, bias, 1, causal)
    np.testing.assert_array_equal(after[:, :, :2], before[:, :, :2])
    assert not np.array_equal(after[:, :, 2], before[:, :, 2])


def test_one_frame_is_a_picture():
    x, weight, bias = volume(2, 3, 1, 6, 7, 4, (1, 3, 3))
    y = conv3d(x, weight, bias, 1, (0, 0, 1, 1, 1, 1))
    assert error(y[:, :, 0], naive2d(x[:, :, 0], weight[:, :, 0], bias, 1, (1, 1, 1, 1))) <= 1e-14


def test_frames_may_be_convolved_by_winograd():
    x, weight, bias = volume(1, 11, 3, 33, 34, 32, (3, 3, 3))
    expected = naive(x, weight, bias, 1, (2, 0, 1, 1, 1, 1))
    single = (a.astype(np.float32) for a in (x, weight, bias))
    assert error(conv3d_frames(*single, 1, (2, 0, 1, 1, 1, 1), convolve=conv2d_fast), expected) <= 5e-6
