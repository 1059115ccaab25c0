"""Gates by SiLU against scipy's logistic function."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from naive import swiglu as naive

from refsd.kernels import swiglu


@given(M=st.integers(1, 5), D=st.integers(1, 40))
def test_shapes(M, D):
    rng = np.random.default_rng(D)
    x, gate, value = rng.normal(0, 3, (M, 2 * D)), rng.normal(0, 9, (M, D)), rng.normal(0, 9, (M, D))
    for dtype, rtol in ((np.float64, 2e-15), (np.float32, 1e-6)):
        for name, arguments in (
            ("swiglu", (x,)),
            ("swiglu_second_gates", (x,)),
            ("swiglu_oai", (gate, value, 1.702, 7.0)),
        ):
            single = [a.astype(dtype) if isinstance(a, np.ndarray) else a for a in arguments]
            exact = [a.astype(np.float64) if isinstance(a, np.ndarray) else a for a in single]
            y = getattr(swiglu, name)(*single)
            assert y.dtype == dtype and y.shape == (M, D)
            np.testing.assert_allclose(y, getattr(naive, name)(*exact), rtol=3 * rtol, atol=1e-35)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_gate_is_what_they_say(dtype):
    x = np.array([[0.0, 5.0]], dtype)
    assert swiglu.swiglu(x) == 0 and swiglu.swiglu_second_gates(x) == 0
    x = np.array([[100.0, 5.0]], dtype)
    assert swiglu.swiglu(x) == 500
    assert swiglu.swiglu_second_gates(x) == pytest.approx(500 / (1 + np.exp(-5)), rel=1e-6)


def test_gpt_oss_limits_the_gate_above_and_the_value_on_both_sides():
    y = swiglu.swiglu_oai(np.array([[99.0, -99.0]]), np.array([[-99.0, 99.0]]), 1.0, 7.0)
    np.testing.assert_allclose(y, [[7 / (1 + np.exp(-7)) * -6, -99 / (1 + np.exp(99)) * 8]], rtol=1e-14)
