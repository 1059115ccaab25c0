"""Both attentions against the naive one: float64 to 1e-13, online float32 to 1e-6 relative L2."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from naive.attention import attention as naive

from refsd.kernels import attention as three_pass
from refsd.kernels.attention import attention, boolean_mask, causal_mask
from refsd.kernels.attention_online import attention_online


def qkv(B, L, J, H, D, E=None, G=None, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape) for shape in ((B, L, H, D), (B, J, G or H, D), (B, J, G or H, E or D))]


def check(q, k, v, scale, *how):
    expected = naive(q, k, v, scale, *how)
    # Of the weighted sum's terms: where they cancel, nothing is left to be relative to.
    norm = max(np.linalg.norm(naive(q, k, abs(v), scale, *how)), 1e-30)
    assert np.linalg.norm(attention(q, k, v, scale, *how) - expected) <= 1e-13 * norm
    assert np.linalg.norm(attention_online(q, k, v, scale, *how) - expected) <= 1e-13 * norm
    y = attention_online(*(t.astype(np.float32) for t in (q, k, v)), scale, *how)
    assert y.dtype == np.float32 and y.shape == expected.shape
    assert np.linalg.norm(y - expected) <= 1e-6 * norm


@given(
    B=st.integers(1, 2),
    L=st.integers(1, 70),
    J=st.integers(1, 140),
    G=st.integers(1, 2),
    share=st.integers(1, 3),
    D=st.integers(1, 20),
    E=st.integers(1, 20),
    diagonal=st.none() | st.integers(-80, 150),
    sink=st.booleans(),
)
@example(B=2, L=33, J=77, G=2, share=1, D=40, E=40, diagonal=None, sink=False)
@example(B=1, L=1, J=1, G=1, share=1, D=1, E=1, diagonal=0, sink=True)
@example(B=1, L=50, J=30, G=1, share=2, D=37, E=33, diagonal=None, sink=False)
@example(B=1, L=129, J=65, G=1, share=4, D=8, E=5, diagonal=-64, sink=False)
@example(B=1, L=20, J=140, G=1, share=1, D=8, E=8, diagonal=120, sink=True)
def test_shapes(B, L, J, G, share, D, E, diagonal, sink):
    sinks = np.random.default_rng(L).standard_normal(G * share) if sink else None
    check(*qkv(B, L, J, G * share, D, E, G), D**-0.5, None, diagonal, sinks)


def test_heads_in_groups_read_neighbouring_keys():
    q, k, v = qkv(1, 5, 7, 6, 8, G=2)
    y = attention(q, k, v, 0.3)
    for h in range(6):
        np.testing.assert_array_equal(
            y[:, :, [h]], attention(q[:, :, [h]], k[:, :, [h // 3]], v[:, :, [h // 3]], 0.3)
        )


def test_long_rows_are_taken_in_blocks(monkeypatch):
    q, k, v = qkv(2, 33, 20, 2, 8)
    whole = attention(q, k, v, 0.3, None, 3)
    monkeypatch.setattr(three_pass, "_SCORES", 100)
    np.testing.assert_allclose(attention(q, k, v, 0.3, None, 3), whole, rtol=1e-13, atol=1e-15)


_PEAK = """
import resource
import numpy as np
from refsd.kernels.attention_online import attention_online
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
q = np.ones((1, {L}, 1, 8), np.float32)
attention_online(q[:, :1], q[:, :1], q[:, :1], 1.0)
before = peak()
y = attention_online(q, q, q, 1.0)
print(peak() - before - y.nbytes)
"""


@pytest.mark.jitted
def test_memory_does_not_grow_with_the_keys():
    """32768 keys: a row of scores for each query would be 4.3 GB; a tile is 64 KB."""
    ran = subprocess.run([sys.executable, "-c", _PEAK.format(L=32768)], capture_output=True, text=True, check=True)
    assert int(ran.stdout) < 4 << 20


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


@pytest.mark.parametrize(("L", "J", "diagonal"), [(77, 77, 0), (20, 77, 0), (20, 77, 57), (77, 20, -57)])
def test_causal_is_a_mask(L, J, diagonal):
    mask = causal_mask(L, np.float64, J, diagonal)
    assert mask[-1, min(J - 1, L - 1 + diagonal)] == 0 and (diagonal != 0 or mask[5, 6] == -np.inf)
    q, k, v = qkv(1, L, J, 2, 16)
    check(q, k, v, 0.25, mask)
    np.testing.assert_array_equal(attention(q, k, v, 0.25, mask), attention(q, k, v, 0.25, None, diagonal))


def test_a_boolean_mask_says_what_is_seen():
    np.testing.assert_array_equal(boolean_mask(np.array([True, False]), np.float32), [0, -np.inf])


def test_a_query_that_sees_no_key_gives_zeros_and_troubles_no_other():
    mask = np.zeros((33, 140))
    mask[3] = -np.inf
    mask[4, :100] = -np.inf  # its first tile of keys is masked throughout
    q, k, v = qkv(1, 33, 140, 2, 8)
    check(q, k, v, 0.3, mask)
    assert (attention_online(*(t.astype(np.float32) for t in (q, k, v)), 0.3, mask)[0, 3] == 0).all()
    assert (attention(q, k, v, 0.3, mask)[0, 3] == 0).all()
    check(q, k, v, 0.3, mask, None, np.array([0.5, -np.inf]))


def test_a_query_above_the_diagonal_sees_nothing():
    q, k, v = qkv(1, 20, 9, 1, 8)
    for attend in (attention, attention_online):
        y = attend(q, k, v, 0.3, None, -11)
        assert (y[0, :11] == 0).all() and (y[0, 11:] != 0).all()


def test_the_sink_takes_its_share():
    q, k, v = np.zeros((1, 3, 2, 4)), np.zeros((1, 3, 2, 4)), np.ones((1, 3, 2, 4))
    y = attention(q, k, v, 1.0, None, None, np.array([0.0, -np.inf]))
    np.testing.assert_allclose(y[:, :, 0], 0.75, rtol=1e-15)
    np.testing.assert_allclose(y[:, :, 1], 1.0, rtol=1e-15)


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
