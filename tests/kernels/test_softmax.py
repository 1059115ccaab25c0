"""Softmax against its naive version; float32 errs by 3e-7 of its largest at most."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from naive.softmax import softmax as naive
from naive.softmax import softmax_sinks as naive_sinks

from refsd.kernels.softmax import softmax, softmax_sinks


def check(x, sinks=None):
    single = x.astype(np.float32)
    if sinks is None:
        double, expected = softmax(x), naive(x)
        y, close = softmax(single), naive(single.astype(np.float64))
    else:
        double, expected = softmax_sinks(x, sinks), naive_sinks(x, sinks)
        low = sinks.astype(np.float32)
        y, close = softmax_sinks(single, low), naive_sinks(single.astype(np.float64), low.astype(np.float64))
    np.testing.assert_allclose(double, expected, rtol=1e-13 * max(1, np.abs(x[np.isfinite(x)]).max()), atol=1e-300)
    assert y.dtype == np.float32
    np.testing.assert_allclose(y, close, atol=3e-7)


@pytest.mark.smoke
@given(M=st.integers(1, 35), L=st.integers(1, 140), spread=st.sampled_from([0.1, 3.0, 200.0]))
@example(M=2, L=1, spread=1.0)
@example(M=17, L=64, spread=1.0)
@example(M=1, L=129, spread=1.0)
def test_shapes(M, L, spread):
    rng = np.random.default_rng(L)
    x = rng.normal(5, spread, (M, L))
    check(x)
    check(x, rng.normal(5, spread, M))


def test_masked_entries_are_zero_and_a_masked_row_gives_zeros():
    x = np.array([[0.0, -np.inf, 1.0], [-np.inf, -np.inf, -np.inf], [-np.inf, 2.0, -np.inf]])
    for dtype in (np.float64, np.float32):
        y = softmax(x.astype(dtype))
        np.testing.assert_array_equal(y[1:], [[0, 0, 0], [0, 1, 0]])
        np.testing.assert_allclose(y[0], naive(x[0]), rtol=1e-15 if dtype == np.float64 else 2e-7)
        y = softmax_sinks(x.astype(dtype), np.zeros(3, dtype))
        np.testing.assert_array_equal(y[1], 0)


def test_one_sink_serves_all_rows_and_minus_infinity_is_none():
    x = np.random.default_rng(0).standard_normal((33, 20))
    np.testing.assert_array_equal(softmax_sinks(x, np.full(1, 0.7)), softmax_sinks(x, np.full(33, 0.7)))
    np.testing.assert_array_equal(softmax_sinks(x, np.full(1, -np.inf)), softmax(x))


def test_a_sink_above_all_scores_does_not_overflow():
    y = softmax_sinks(np.zeros((1, 2)), np.full(1, 800.0))
    assert (y == 0).all()
    y = softmax_sinks(np.full((1, 2), 800.0), np.full(1, 800.0))
    np.testing.assert_allclose(y, [[1 / 3, 1 / 3]], rtol=1e-15)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_nan_is_not_hidden(dtype):
    y = softmax(np.array([[0.0, np.nan], [0.0, 0.0]], dtype))
    assert np.isnan(y[0]).all()
    np.testing.assert_array_equal(y[1], [0.5, 0.5])
