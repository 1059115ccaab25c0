"""Batch normalisation against a matrix over the channels, and back."""

import numpy as np
from naive.batch_norm import batch_norm as naive

from refsd.kernels.batch_norm import batch_denorm, batch_norm

RNG = np.random.default_rng(0)
X, MEAN, VAR = RNG.standard_normal((2, 5, 3, 7)), RNG.standard_normal(5), RNG.uniform(0.1, 4, 5)


def test_values():
    np.testing.assert_allclose(batch_norm(X, MEAN, VAR, 1e-4), naive(X, MEAN, VAR, 1e-4), rtol=1e-13, atol=1e-14)


def test_back():
    np.testing.assert_allclose(batch_denorm(batch_norm(X, MEAN, VAR, 1e-4), MEAN, VAR, 1e-4), X, rtol=1e-13)


def test_float32_stays_float32():
    single = [a.astype(np.float32) for a in (X, MEAN, VAR)]
    y = batch_norm(*single, 1e-4)
    assert y.dtype == batch_denorm(*single, 1e-4).dtype == np.float32
    np.testing.assert_allclose(y, naive(X, MEAN, VAR, 1e-4), rtol=1e-5, atol=1e-6)
