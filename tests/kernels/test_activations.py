"""Activations against their naive versions, and against high precision where they claim ULPs."""

import numpy as np
import pytest
from naive import activations as naive
from scipy import special

from refsd.kernels import activations
from refsd.kernels.erfc import erfc64

NAMES = ("silu", "gelu", "gelu_tanh", "quick_gelu")
X = np.concatenate([np.linspace(-40, 12, 1001), np.geomspace(1e-300, 1, 77), [0.0]])


@pytest.mark.parametrize("name", NAMES)
def test_float64(name):
    y = getattr(activations, name)(X)
    expected = getattr(naive, name)(X)
    assert np.abs(y - expected).max() <= 5e-16 * np.abs(X).max()
    body = X > -2
    np.testing.assert_allclose(y[body], expected[body], rtol=3e-15)


# name -> ULPs, and arguments that err most: found by test_every_float32.py.
FLOAT32 = {
    "silu": (3.5, [-5.8933415]),
    "gelu": (6.0, [-2.7727935]),
    "gelu_tanh": (3.5, [-2.9778905]),
    "quick_gelu": (3.5, [-3.6026106]),
}


@pytest.mark.parametrize("name", NAMES)
def test_float32_errs_by_a_few_ulp(name):
    bound, worst = FLOAT32[name]
    x = np.concatenate([X, worst, [-1e30, -88.5, 3e38]]).astype(np.float32)
    y = getattr(activations, name)(x)
    assert y.dtype == np.float32
    exact = getattr(activations, name)(x.astype(np.float64))
    normal = np.abs(exact) >= 2e-36
    ulps = np.abs(y - exact)[normal] / np.spacing(np.abs(exact[normal]).astype(np.float32))
    assert ulps.max() <= bound
    assert np.abs(y - exact)[~normal].max() <= 2e-36


@pytest.mark.parametrize("name", NAMES)
def test_any_shape_keeps_its_shape(name):
    x = np.linspace(-3, 3, 2 * 3 * 5).reshape(2, 3, 1, 5)
    y = getattr(activations, name)(x)
    np.testing.assert_array_equal(y, getattr(activations, name)(x.ravel()).reshape(x.shape))


@pytest.mark.parametrize("name", NAMES)
def test_the_far_ends(name):
    y = getattr(activations, name)(np.array([-700.0, 700.0, np.nan]))
    np.testing.assert_allclose(y, [0.0, 700.0, np.nan], rtol=0, atol=1e-300)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_geglu(dtype):
    x = np.random.default_rng(1).normal(0, 2, (33, 2 * 77)).astype(dtype)
    y = activations.geglu(x)
    assert y.shape == (33, 77) and y.dtype == dtype
    expected = naive.geglu(x.astype(np.float64))
    np.testing.assert_allclose(y, expected, rtol=2e-14 if dtype == np.float64 else 1e-6, atol=1e-16)


def test_erfc_where_scipy_knows_it_well():
    z = np.linspace(-6, 26, 3001)
    y = np.array([erfc64(v) for v in z])
    # scipy's own tail loses z^2 / 2 ULP; erfcx does not.
    expected = np.where(z < 0, special.erfc(z), special.erfcx(np.abs(z)) * np.exp(-(z.astype(np.longdouble) ** 2)))
    assert (np.abs(y / expected.astype(np.float64) - 1)).max() <= 6 * 2.0**-52


def test_erfc_coefficients_are_the_chebyshev_fit_that_they_claim_to_be():
    z_max, k = 28.0, 4.0
    end = (z_max - k) / (z_max + k)
    fit = np.polynomial.Chebyshev.interpolate(
        lambda t: special.erfcx(k * (1 + t) / (1 - t)) * (k + k * (1 + t) / (1 - t)), 22, domain=[-1, end]
    )
    z = np.linspace(0, 26, 501)
    t = (z - k) / (z + k)
    mine = np.array([erfc64(v) for v in z]) * np.exp(z.astype(np.longdouble) ** 2) * (z + k)
    np.testing.assert_allclose(mine.astype(np.float64), fit(t), rtol=3e-14)
