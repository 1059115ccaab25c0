"""Modulation against the token-by-token version."""

import numpy as np
from naive.modulate import modulate as naive

from refsd.kernels.modulate import modulate


def test_values():
    rng = np.random.default_rng(0)
    x, shift, scale = (rng.standard_normal(s) for s in ((2, 33, 7), (2, 7), (2, 7)))
    np.testing.assert_allclose(modulate(x, shift, scale), naive(x, shift, scale), rtol=1e-14, atol=1e-15)
