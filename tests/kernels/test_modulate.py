"""Modulation and gates against the token-by-token versions."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from naive import modulate as naive

from refsd.kernels.modulate import adaptive_layer_norm, gated_add, modulate


@given(N=st.integers(1, 3), L=st.integers(1, 7), D=st.integers(2, 70))
def test_shapes(N, L, D):
    rng = np.random.default_rng(D)
    x, h = rng.standard_normal((2, N, L, D))
    shift, scale = rng.standard_normal((2, N, D))
    for dtype, bound in ((np.float64, 1e-13), (np.float32, 2e-6)):
        a, b, s, c = (t.astype(dtype) for t in (x, h, shift, scale))
        for y, expected in (
            (modulate(a, s, c), naive.modulate(x, shift, scale)),
            (adaptive_layer_norm(a, s, c, 1e-6), naive.adaptive_layer_norm(x, shift, scale, 1e-6)),
            (gated_add(a, b, s), naive.gated_add(x, h, shift)),
        ):
            assert y.dtype == dtype and y.shape == x.shape
            assert np.abs(y - expected).max() <= bound * (1 + np.abs(expected).max())
