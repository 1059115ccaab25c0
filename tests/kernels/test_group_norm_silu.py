"""The fused kernel against one after the other."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from naive.activations import silu
from naive.group_norm_silu import group_norm_silu as naive

from refsd.kernels.group_norm_silu import POWER, group_norm_silu, silu_by_power32


@given(
    N=st.integers(1, 2), G=st.sampled_from([1, 4]), D=st.integers(1, 3), H=st.integers(1, 5), W=st.integers(1, 40)
)
def test_shapes(N, G, D, H, W):
    rng = np.random.default_rng(H * W)
    x, weight, bias = rng.normal(0.5, 2, (N, G * D, H, W)), rng.normal(1, 0.3, G * D), rng.normal(0, 1, G * D)
    expected = naive(x, weight, bias, G, 1e-5)
    np.testing.assert_allclose(group_norm_silu(x, weight, bias, G, 1e-5), expected, rtol=1e-12, atol=1e-14)
    y = group_norm_silu(*(a.astype(np.float32) for a in (x, weight, bias)), G, 1e-5)
    assert y.dtype == np.float32 and y.shape == x.shape
    assert np.abs(y - expected).max() <= 1e-6 * (1 + np.abs(expected).max())


def test_a_large_mean_costs_nothing():
    x = np.random.default_rng(5).normal(1e5, 1, (1, 4, 5, 77)).astype(np.float32)
    expected = naive(x.astype(np.float64), np.ones(4), np.zeros(4), 2, 1e-6)
    y = group_norm_silu(x, np.ones(4, np.float32), np.zeros(4, np.float32), 2, 1e-6)
    np.testing.assert_allclose(y, expected, atol=1e-6)


def test_the_power_of_two_is_the_fit_that_it_claims_to_be():
    r = np.linspace(-0.5, 0.5, 4001)
    error = np.polyval([*reversed(POWER), 1], r) / 2**r - 1
    assert np.abs(error).max() <= 1.1e-7
    # A smallest largest error is reached by turns on both sides, degree + 1 times.
    peaks = error[1:-1][(np.diff(error)[:-1] * np.diff(error)[1:]) < 0]
    ends = np.array([error[0], *peaks, error[-1]])
    assert len(ends) >= 6 and (np.diff(np.sign(ends)) != 0).all()


def test_silu_by_a_power_of_two():
    z = np.linspace(-30, 30, 999).astype(np.float32)
    y = np.array([silu_by_power32(v, np.float32(v * np.float32(-np.log2(np.e)))) for v in z])
    assert (np.abs(y - silu(z.astype(np.float64))) <= 1.2e-7 * np.abs(z)).all()
    assert silu_by_power32(np.float32(-1e30), np.float32(1e30)) == 0
    assert silu_by_power32(np.float32(1e30), np.float32(-1e30)) == np.float32(1e30)
