"""Both attentions against the naive one: float64 to 1e-13, online float32 to 1e-6 relative L2."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from naive.attention import attention as naive

from refsd.kernels.attention import attention, causal_mask
from refsd.kernels.attention_online import attention_online


def qkv(B, L, J, H, D, E=None, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape) for shape in ((B, L, H, D), (B, J, H, D), (B, J, H, E or D))]


def check(q, k, v, scale, mask=None):
    expected = naive(q, k, v, scale, mask)
    norm = max(np.linalg.norm(expected), 1e-30)
    assert np.linalg.norm(attention(q, k, v, scale, mask) - expected) <= 1e-13 * norm
    y = attention_online(*(t.astype(np.float32) for t in (q, k, v)), scale, mask)
    assert y.dtype == np.float32 and y.shape == expected.shape
    assert np.linalg.norm(y - expected) <= 1e-6 * norm


@given(B=st.integers(1, 2), L=st.integers(1, 70), J=st.integers(1, 140), H=st.integers(1, 3), D=st.integers(1, 20))
@example(B=2, L=33, J=77, H=2, D=40)
@example(B=1, L=1, J=1, H=1, D=1)
@example(B=1, L=65, J=129, H=2, D=8)
def test_shapes(B, L, J, H, D):
    check(*qkv(B, L, J, H, D), D**-0.5)


def test_values_may_be_wider_than_keys():
    check(*qkv(2, 33, 20, 2, 8, E=13), 0.3)


MASKS = {
    "one row for all": (1, 1, 1, 77),
    "every query its own": (33, 77),
    "every head its own": (3, 33, 77),
    "all": (2, 3, 33, 77),
    "per item": (2, 1, 1, 77),
}


@pytest.mark.parametrize("shape", MASKS.values(), ids=MASKS)
def test_masks_broadcast(shape):
    rng = np.random.default_rng(7)
    mask = np.where(rng.random(shape) < 0.4, -np.inf, rng.standard_normal(shape))
    check(*qkv(2, 33, 77, 3, 5), 0.4, mask)


def test_causal():
    mask = causal_mask(77, np.float64)
    assert mask[5, 5] == 0 and mask[5, 6] == -np.inf
    check(*qkv(1, 77, 77, 2, 16), 0.25, mask)


def test_a_query_that_sees_no_key_gives_zeros_and_troubles_no_other():
    mask = np.zeros((33, 140))
    mask[3] = -np.inf
    mask[4, :100] = -np.inf  # its first tile of keys is masked throughout
    q, k, v = qkv(1, 33, 140, 2, 8)
    check(q, k, v, 0.3, mask)
    assert (attention_online(*(t.astype(np.float32) for t in (q, k, v)), 0.3, mask)[0, 3] == 0).all()
    assert (attention(q, k, v, 0.3, mask)[0, 3] == 0).all()


def test_large_scores_do_not_overflow():
    q, k, v = (t.astype(np.float32) for t in qkv(1, 9, 130, 1, 8))
    y = attention_online(q * 100, k, v, 10.0)
    np.testing.assert_allclose(y, attention(*(t.astype(np.float64) for t in (q * 100, k, v)), 10.0), rtol=1e-3)


def test_nan_is_not_hidden():
    q, k, v = (t.astype(np.float32) for t in qkv(1, 5, 70, 1, 8))
    q[0, 2] = np.nan
    for attend in (attention, attention_online):
        y = attend(q, k, v, 1.0)
        assert np.isnan(y[0, 2]).all() and np.isfinite(np.delete(y, 2, axis=1)).all()
