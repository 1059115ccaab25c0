"""Two weighted sums against a product of matrices."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes
from naive import combine_twice as naive

from refsd.kernels.combine_twice import combine_twice


@given(
    shape=array_shapes(min_dims=0, max_dims=3, max_side=5),
    k=st.integers(1, 8),
    seed=st.integers(0, 2**32 - 1),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_against_naive(shape, k, seed, dtype):
    rng = np.random.default_rng(seed)
    weights = rng.standard_normal(2 * k + 1).astype(np.float32).astype(np.float64)
    arrays = [np.asarray(x) for x in rng.standard_normal((k, *shape)).astype(dtype)]
    answers = combine_twice(weights, arrays)
    expected = naive.combine_twice(weights[k], weights[:k], weights[k + 1 :], arrays)
    size = np.abs(weights)
    magnitude = naive.combine_twice(size[k], size[:k], size[k + 1 :], np.abs(arrays))
    for mine, theirs, most in zip(answers, expected, magnitude, strict=True):
        assert mine.dtype == dtype and mine.shape == shape
        assert (np.abs(mine - theirs) <= (2 * k + 1) * np.finfo(dtype).eps * most).all()


@pytest.mark.parametrize("k", [2, 3, 4, 5, 6, 7, 8])
def test_shapes_must_be_equal(k):
    arrays = [np.ones((3, 4))] * (k - 1) + [np.ones((4, 3))]
    with pytest.raises(ValueError, match="differ in shape"):
        combine_twice(np.ones(2 * k + 1), arrays)


def test_every_array_has_its_weights():
    with pytest.raises(ValueError, match="6 weights of 3 arrays, not 7"):
        combine_twice(np.ones(6), [np.ones(2)] * 3)
