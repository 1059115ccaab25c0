"""UniPC's weights against a general solver, and their order."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from naive import uni_pc_weights as naive

from refsd.kernels.uni_pc_weights import uni_pc_weights


@given(
    order=st.integers(1, 4),
    ahead=st.integers(0, 1),
    second=st.booleans(),
    steps=st.lists(st.floats(0.2, 1.5), min_size=1, max_size=6),
)
def test_against_naive(order, ahead, second, steps):
    times, h = np.concatenate([[-2.0], -2 + np.cumsum(steps)]), np.array(steps)
    sizes, used = np.expm1(-h) if second else -h, np.minimum(np.arange(len(h)) + 1, order)
    w = uni_pc_weights(times, used, sizes, ahead, order)
    np.testing.assert_allclose(w, naive.uni_pc_weights(times, used, sizes, ahead, order), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_constant_is_kept(ahead):
    """Where every value is 1, and so is x, it stays 1: a row adds up to 1, at any order."""
    times, h = np.array([0.0, 0.3, 0.7, 1.6, 1.9]), np.diff([0.0, 0.3, 0.7, 1.6, 1.9])
    for used in ([1, 1, 1, 1], [1, 2, 2, 1], [1, 2, 3, 3]):
        w = uni_pc_weights(times, np.array(used), np.expm1(-h), ahead, 3)
        np.testing.assert_allclose(w.sum(axis=1), 1.0, rtol=1e-14)
        assert (w[:, -1] != 0).all() == ahead
