"""Attention in int8 against one of fractions, and what its blocks and its smoothing do."""

import numpy as np
import pytest
from naive.attention_int8 import attention_int8 as naive

from refsd.kernels.attention import attention
from refsd.kernels.attention_int8 import attention_int8, codes_of_blocks


def qkv(B, L, J, H, G, D, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape) for shape in ((B, L, H, D), (B, J, G, D), (B, J, G, D + 1))]


@pytest.mark.parametrize("smooth", [True, False])
@pytest.mark.parametrize("blocks", [(4, 2), (3, 5), (100, 1)])
def test_against_fractions(blocks, smooth):
    q, k, v = qkv(2, 7, 5, 4, 2, 8)
    y = attention_int8(q, k, v, 0.7, *blocks, smooth)
    for b, h in np.ndindex(2, 4):
        want = naive(q[b, :, h].tolist(), k[b, :, h // 2].tolist(), v[b, :, h // 2].tolist(), 0.7, *blocks, smooth)
        assert abs(y[b, :, h] - want).max() <= 1e-14
    narrow = attention_int8(*(t.astype(np.float32) for t in (q, k, v)), 0.7, *blocks, smooth)
    assert narrow.dtype == np.float32 and abs(narrow - y).max() <= 1e-6


def test_it_is_attention_up_to_the_steps_of_its_codes():
    q, k, v = qkv(1, 40, 70, 2, 2, 32)
    exact = attention(q, k, v, 32**-0.5)
    error = abs(attention_int8(q, k, v, 32**-0.5, 16, 16) - exact).max()
    assert 1e-4 < error < 0.02 * abs(exact).max()


def test_smoothing_saves_the_other_channels_from_one_that_is_large_for_every_key():
    q, k, v = qkv(1, 40, 70, 2, 2, 32)
    k[..., 5] += 200
    exact = attention(q, k, v, 32**-0.5)
    smooth, plain = (abs(attention_int8(q, k, v, 32**-0.5, 64, 64, s) - exact).max() for s in (True, False))
    assert smooth < 0.02 < 0.2 < plain


def test_a_block_of_zeros_scores_zero():
    q, k, v = qkv(1, 6, 5, 1, 1, 4)
    q[:, :3] = 0
    assert abs(attention_int8(q, k, v, 0.5, 3, 2)[0, :3, 0] - v.mean(axis=1)[0, 0]).max() <= 1e-15


def test_ties_are_rounded_away_from_zero():
    x = np.array([127.0, 0.5, -0.5, 2.5]).reshape(1, 1, 1, 4)
    codes, scale = codes_of_blocks(x, 1)
    assert codes.ravel().tolist() == [127, 1, -1, 3] and scale.ravel().tolist() == [1]
