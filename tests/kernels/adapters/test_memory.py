"""What an adapter holds while it computes: bounded, and far below the delta."""

import tracemalloc

import numpy as np
import pytest

from refsd.kernels.adapters import Conv2d, Linear, LoHa, LoKr

pytestmark = pytest.mark.jitted


def extra(adapter, layer, x, most):
    """Peak bytes that a forward allocates: the least of four, for the first ones also load what is loaded once.

    most: that is few enough; no other forward runs after one of so many
    """
    base = layer.apply(x, layer.weight)
    peaks = []
    while len(peaks) < 4 and (not peaks or peaks[-1] > most):
        tracemalloc.start()
        adapter.forward(x, base, layer, base)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    return min(peaks)


def f32(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(
    ("out", "inputs", "tokens", "w1"),
    [
        (1280, 1280, 4096, (32, 32)),
        (640, 640, 1024, (20, 20)),
        (1280, 2048, 77, (32, 32)),
        (1280, 1280, 64, (8, 8)),
    ],
)
@pytest.mark.parametrize("rank", [None, 4])
def test_lokr_linear_at_sdxls_sizes(out, inputs, tokens, w1, rank):
    w2 = (out // w1[0], inputs // w1[1])
    factors = f32(*w2) if rank is None else (f32(w2[0], rank), f32(rank, w2[1]))
    layer = Linear(f32(out, inputs))
    most = layer.weight.nbytes / 24
    assert extra(LoKr(f32(*w1), factors), layer, f32(tokens, inputs), most) <= most


@pytest.mark.parametrize("form", ["full", "factored", "tucker"])
@pytest.mark.parametrize(
    ("channels", "side", "w1"), [(640, 16, (20, 20)), (320, 32, (16, 20)), (1280, 16, (32, 32))]
)
def test_lokr_conv2d(form, channels, side, w1):
    O2, I2, K = channels // w1[0], channels // w1[1], 4
    w2 = {
        "full": f32(O2, I2, 3, 3),
        "factored": (f32(O2, K), f32(K, I2 * 9)),
        "tucker": (f32(K, O2), f32(K, I2), f32(K, K, 3, 3)),
    }[form]
    layer = Conv2d(f32(channels, channels, 3, 3), None, 1, (1, 1, 1, 1))
    most = layer.weight.nbytes / 24
    assert extra(LoKr(f32(*w1), w2), layer, f32(1, channels, side, side), most) <= most


def test_loha_holds_blocks_of_rows():
    """Four times the block of 1 MB: two halves, their product, a block's output."""
    layer, K = Linear(f32(1280, 1280)), 4
    adapter = LoHa(f32(1280, K), f32(K, 1280), f32(1280, K), f32(K, 1280))
    most = 3 << 20
    assert extra(adapter, layer, f32(64, 1280), most) <= most < layer.weight.nbytes / 2
