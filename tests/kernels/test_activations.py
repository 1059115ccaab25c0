"""Activations against their naive versions, and against high precision where they claim ULPs."""

import numpy as np
import pytest
from naive import activations as naive

from refsd.kernels import activations

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
    "gelu": (6.43, [-0.33665478, -2.7727935]),
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
