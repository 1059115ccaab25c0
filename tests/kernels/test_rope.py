"""Rotary embedding against complex multiplication."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from naive import rope as naive

from refsd.kernels import rope
from refsd.kernels.rope import apply_rope, apply_rope_halves, rope_angles, rope_angles_float32


def test_angles_by_hand():
    ids = np.array([[[3, 5], [0, 1]]])
    angle = rope_angles(ids, (4, 2), 100.0)
    np.testing.assert_allclose(angle, [[[3, 3 * 0.1, 5], [0, 0, 1]]], rtol=1e-15)


@pytest.mark.parametrize(
    ("axes_dim", "theta"), [((8, 12, 12), 1e4), ((4, 6, 6), 256.0), ((4, 4, 4, 4), 2000.0), ((32,), 1e6)]
)
def test_angles_of_every_model(axes_dim, theta):
    ids = np.random.default_rng(0).integers(0, 100, (2, 5, len(axes_dim)))
    np.testing.assert_allclose(
        rope_angles(ids, axes_dim, theta), naive.rope_angles(ids, axes_dim, theta), rtol=1e-15
    )


@given(N=st.integers(1, 2), L=st.integers(1, 5), H=st.integers(1, 3), half=st.integers(1, 20))
def test_turning_is_complex_multiplication(N, L, H, half):
    rng = np.random.default_rng(half)
    x, angle = rng.standard_normal((N, L, H, 2 * half)), rng.uniform(0, 4000, (N, L, half))
    for name in ("apply_rope", "apply_rope_halves"):
        expected = getattr(naive, name)(x, angle)
        np.testing.assert_allclose(getattr(rope, name)(x, angle), expected, atol=2e-15 * np.abs(x).max())
        y = getattr(rope, name)(x.astype(np.float32), angle)
        assert y.dtype == np.float32
        np.testing.assert_allclose(y, expected, atol=4e-7 * np.abs(x).max())


def test_one_angle_serves_every_item():
    rng = np.random.default_rng(3)
    x, angle = rng.standard_normal((2, 3, 2, 4)), rng.uniform(0, 9, (1, 3, 2))
    np.testing.assert_array_equal(apply_rope(x, angle), apply_rope(x, np.repeat(angle, 2, axis=0)))


@pytest.mark.parametrize("shape", [(1, 3, 4), (1, 6, 4), (1, 5, 3), (1, 5, 8), (3, 5, 4)])
def test_angles_of_other_sizes_are_refused(shape):
    x, angle = np.ones((2, 5, 1, 8)), np.ones(shape)
    for turn in (apply_rope, apply_rope_halves):
        with pytest.raises(ValueError, match=r"for x of \(2, 5, 1, 8\): expected \(2, 5, 4\)"):
            turn(x, angle)


def test_the_two_pairings_are_one_permutation_apart():
    rng = np.random.default_rng(4)
    x, angle = rng.standard_normal((1, 3, 2, 8)), rng.uniform(0, 9, (1, 3, 4))
    neighbours = np.arange(8).reshape(2, 4).T.ravel()
    np.testing.assert_array_equal(
        apply_rope_halves(x, angle)[..., neighbours], apply_rope(x[..., neighbours], angle)
    )


def test_scores_depend_on_distance_alone():
    rng = np.random.default_rng(1)
    q, k = rng.standard_normal((2, 1, 1, 1, 8))

    def score(at, other):
        turned = [apply_rope(t, rope_angles([[[p]]], (8,), 1e4)) for t, p in ((q, at), (k, other))]
        return np.vdot(*turned)

    np.testing.assert_allclose(score(3, 10), score(53, 60), rtol=1e-12)


def test_float32_angles_err_with_the_position():
    """As far as FLUX.1's largest picture, 128 x 128 tokens, and Qwen3's 512 tokens."""
    far = []
    for axes_dim, theta, last in (((16, 56, 56), 1e4, 127), ((128,), 1e6, 511)):
        ids = np.broadcast_to(np.arange(last + 1)[:, None], (1, last + 1, len(axes_dim)))
        off = np.abs(rope_angles_float32(ids, axes_dim, theta) - rope_angles(ids, axes_dim, theta))
        far.append(off.max())
        assert off[:, 0].max() == 0
    assert 1e-6 < far[0] < 2e-5 and 1e-5 < far[1] < 1e-4
