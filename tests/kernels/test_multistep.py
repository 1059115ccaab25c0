"""A multistep method's step against slopes stacked and weighed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes
from naive import multistep as naive

from refsd.kernels.multistep import multistep


@given(
    shape=array_shapes(min_dims=0, max_dims=4, max_side=5),
    k=st.integers(1, 6),
    sigma=st.floats(0.01, 100),
    seed=st.integers(0, 2**32 - 1),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_against_naive(shape, k, sigma, seed, dtype):
    rng = np.random.default_rng(seed)
    weights = rng.standard_normal(k).tolist()
    x, denoised, *slopes = (np.asarray(a) for a in rng.standard_normal((k + 1, *shape)).astype(dtype))
    moved, d = multistep(x, denoised, sigma, weights, slopes)
    expected, slope = naive.multistep(x, denoised, sigma, weights, slopes)
    assert moved.dtype == d.dtype == dtype and moved.shape == d.shape == shape
    eps = np.finfo(dtype).eps
    size = (np.abs(x) + np.abs(denoised)) / sigma
    assert (np.abs(d - slope) <= 2 * eps * size).all()
    total = np.abs(x) + abs(weights[0]) * size
    total = total + sum(abs(w) * np.abs(s) for w, s in zip(weights[1:], slopes, strict=True))
    assert (np.abs(moved - expected) <= (k + 3) * eps * total).all()


def test_another_dtype_and_layout():
    """float64 slopes and answers for a float32 state, in Fortran's order and strided."""
    x, denoised, s = np.random.default_rng(0).standard_normal((3, 6, 5)).astype(np.float32)
    wide = np.asfortranarray(denoised.astype(np.float64)), np.repeat(s.astype(np.float64), 2, 1)[:, ::2]
    one = multistep(x, denoised, 2.0, [0.5, 0.25], [s])
    for mine, other in zip(one, multistep(x, wide[0], 2.0, [0.5, 0.25], [wide[1]]), strict=True):
        assert mine.dtype == other.dtype == np.float32
        np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize("place", range(5))
def test_shapes_must_be_equal(place):
    arrays = [np.ones((3, 4))] * 5
    arrays[place] = np.ones((4, 3))
    for k in range(max(1, place), 5):
        with pytest.raises(ValueError, match="differ in shape"):
            multistep(arrays[0], arrays[1], 1.0, [1.0] * k, arrays[2 : k + 1])


def test_weights_and_slopes_go_together():
    with pytest.raises(ValueError, match="1 weights of 1 slopes"):
        multistep(np.ones(3), np.ones(3), 1.0, [1.0], [np.ones(3)])
