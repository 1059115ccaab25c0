"""Soft-capped attention against the naive one, and what its limit does."""

import numpy as np
import pytest
from naive.attention_softcap import attention_softcap as naive

from refsd.kernels.attention import attention, causal_mask
from refsd.kernels.attention_softcap import attention_softcap


def qkv(B, L, J, H, G, D, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape) for shape in ((B, L, H, D), (B, J, G, D), (B, J, G, D + 1))]


@pytest.mark.parametrize(("shape", "cap"), [((2, 5, 7, 4, 2, 8), 0.5), ((1, 9, 9, 3, 1, 16), 3.0)])
@pytest.mark.parametrize("causal", [False, True])
def test_against_naive(shape, cap, causal):
    q, k, v = qkv(*shape)
    mask = causal_mask(shape[1], np.float64, shape[2]) if causal else None
    want = naive(q, k, v, 0.7, cap, mask)
    assert np.linalg.norm(attention_softcap(q, k, v, 0.7, cap, mask) - want) <= 1e-13 * np.linalg.norm(want)
    y = attention_softcap(*(t.astype(np.float32) for t in (q, k, v)), 0.7, cap, mask)
    assert y.dtype == np.float32 and np.linalg.norm(y - want) <= 1e-6 * np.linalg.norm(want)


def test_a_distant_limit_is_none():
    q, k, v = qkv(1, 4, 6, 2, 2, 8)
    np.testing.assert_allclose(attention_softcap(q, k, v, 0.3, 1e6), attention(q, k, v, 0.3), rtol=1e-9)


def test_a_query_that_sees_no_key_gives_zeros():
    q, k, v = qkv(1, 2, 3, 1, 1, 4)
    mask = np.array([[-np.inf] * 3, [0.0] * 3])
    y = attention_softcap(q, k, v, 0.3, 2.0, mask)
    assert not y[:, 0].any() and y[:, 1].all()
