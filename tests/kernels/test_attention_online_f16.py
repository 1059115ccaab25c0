import numpy as np
import pytest
from naive.attention_online_f16 import attention_online_f16 as naive

from refsd.kernels.attention import attention
from refsd.kernels.attention_online_f16 import attention_online_f16, round_to_f16

NO_SINKS = np.full(4, -np.inf, np.float32)


def _qkv(J, G=4, E=8):
    rng = np.random.default_rng(0)
    shapes = (2, 5, 4, 8), (2, J, G, 8), (2, J, G, E)
    return (rng.standard_normal(shape).astype(np.float32) for shape in shapes)


def test_rounding_is_that_of_float16():
    codes = np.arange(0, 0x7C00, 7, dtype=np.uint16)
    values = codes.view(np.float16).astype(np.float32)
    above = (codes + np.uint16(1)).view(np.float16).astype(np.float32)
    for low, high in zip(values, above, strict=True):
        if high == np.inf:
            continue
        for part in (0.25, 0.75):
            x = np.float32(low + np.float32(part) * (high - low))
            assert round_to_f16(x) == (low if part < 0.5 else high)
            assert round_to_f16(-x) == -round_to_f16(x)
    assert round_to_f16(np.float32(65519)) == 65504
    assert round_to_f16(np.float32(65521)) == np.inf


@pytest.mark.parametrize("sinks", [NO_SINKS, np.array([-3, 0, -np.inf, 9], np.float32)], ids=["plain", "sinks"])
@pytest.mark.parametrize(("J", "G", "E"), [(1, 4, 8), (7, 2, 5), (33, 1, 11)])
def test_running_sum_in_float16(J, G, E, sinks):
    q, k, v = _qkv(J, G, E)
    mask = np.random.default_rng(1).standard_normal((2, 1, 5, J)).astype(np.float32)
    mask[:, :, 2, : J // 2] = -np.inf
    y = attention_online_f16(q, k, v, 0.3, mask, sinks)
    expected = naive(*(x.astype(np.float64) for x in (q, k, v)), 0.3, np.broadcast_to(mask, (2, 4, 5, J)), sinks)
    # A score's last bit can tip a rounding: most elements agree to float32, none strays by two float16 steps.
    assert np.median(np.abs(y - expected)) < 1e-6
    np.testing.assert_allclose(y, expected, atol=2e-3)


def test_it_is_attention_but_for_float16():
    q, k, v = _qkv(33)
    y = attention_online_f16(q, k, v, 0.3, np.zeros((1, 1, 1, 1), np.float32), NO_SINKS)
    truth = attention(*(x.astype(np.float64) for x in (q, k, v)), 0.3)
    error = np.linalg.norm(y - truth) / np.linalg.norm(truth)
    assert 1e-5 < error < 2e-3


def test_a_query_that_sees_no_key_gives_zeros():
    q, k, v = _qkv(4)
    hidden = np.full((1, 1, 1, 1), -np.inf, np.float32)
    for sinks in (NO_SINKS, np.zeros(4, np.float32)):
        y = attention_online_f16(q, k, v, 0.3, hidden, sinks)
        assert (y == 0).all()
