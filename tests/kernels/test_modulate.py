"""Modulation and gates against the token-by-token versions."""

import numpy as np
import pytest
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


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(1, 4), (3, 4), (2, 3), (2, 5)])
def test_arrays_that_do_not_fit_are_refused(shape, dtype):
    x, fits, other = (np.ones(s, dtype) for s in ((2, 5, 4), (2, 4), shape))
    for wrong in (
        lambda: modulate(x, fits, other),
        lambda: modulate(x, other, fits),
        lambda: adaptive_layer_norm(x, fits, other, 1e-6),
        lambda: gated_add(x, x, other),
    ):
        with pytest.raises(ValueError, match=r"for x of \(2, 5, 4\): expected \(2, 4\)"):
            wrong()
    with pytest.raises(ValueError, match=r"h of \(2, 3, 4\) for x of \(2, 5, 4\)"):
        gated_add(x, x[:, :3].copy(), fits)
