"""UniPC's step against a general solver of linear systems, and what it keeps."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from naive import uni_pc as naive

from refsd.samplers.uni_pc import step


def weights(ts, t_next, B, ahead):
    """What a step weighs x, the values and the one at its end with: its answer for unit vectors."""
    x, *ms = np.eye(1 + len(ts) + ahead)
    return step(x, ms[: len(ts)], ts, t_next, B, ms[-1] if ahead else None)


@given(
    ahead=st.integers(0, 1),
    second=st.booleans(),
    steps=st.lists(st.floats(0.2, 1.5), min_size=1, max_size=4),
)
def test_against_naive(ahead, second, steps):
    *ts, t_next = (-2 + np.cumsum([0.0, *steps])).tolist()
    B = (lambda h: math.expm1(-h)) if second else (lambda h: -h)
    w = weights(ts[::-1], t_next, B, ahead)
    expected = naive.weights(ts[::-1], t_next, B(t_next - ts[-1]), ahead)
    np.testing.assert_allclose(w, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("order", [1, 2, 3])
def test_a_constant_is_kept(order, ahead):
    """Where every value is 1, and so is x, it stays 1: the weights add up to 1."""
    w = weights([1.6, 0.7, 0.3][:order], 1.9, lambda h: math.expm1(-h), ahead)
    assert abs(w.sum() - 1) < 1e-14 and (w[1:] != 0).all()
