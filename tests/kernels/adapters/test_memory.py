"""What an adapter holds while it computes: bounded, and far below the delta."""

import tracemalloc

import numpy as np
import pytest

from refsd.kernels.adapters import Conv2d, Linear, LoHa, LoKr

pytestmark = pytest.mark.jitted


def extra(adapter, layer, x):
    """Peak bytes that NumPy allocates during a forward, less what it leaves."""
    base = layer.apply(x, layer.weight)
    adapter.forward(x, base, layer, base)
    tracemalloc.start()
    adapter.forward(x, base, layer, base)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


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
    assert extra(LoKr(f32(*w1), factors), layer, f32(tokens, inputs)) <= layer.weight.nbytes / 24


@pytest.mark.parametrize("form", ["full", "factored", "tucker"])
@pytest.mark.parametrize(
    ("channels", "side", "w1"), [(640, 16, (20, 20)), (320, 32, (16, 20)), (1280, 32, (32, 32))]
)
def test_lokr_conv2d(form, channels, side, w1):
    O2, I2, K = channels // w1[0], channels // w1[1], 4
    w2 = {
        "full": f32(O2, I2, 3, 3),
        "factored": (f32(O2, K), f32(K, I2 * 9)),
        "tucker": (f32(K, O2), f32(K, I2), f32(K, K, 3, 3)),
    }[form]
    layer = Conv2d(f32(channels, channels, 3, 3), None, 1, (1, 1, 1, 1))
    assert extra(LoKr(f32(*w1), w2), layer, f32(1, channels, side, side)) <= layer.weight.nbytes / 24


def test_loha_holds_blocks_of_rows():
    """Four times the block of 1 MB: two halves, their product, a block's output."""
    layer, K = Linear(f32(1280, 1280)), 4
    adapter = LoHa(f32(1280, K), f32(K, 1280), f32(1280, K), f32(K, 1280))
    assert extra(adapter, layer, f32(64, 1280)) <= 3 << 20 < layer.weight.nbytes / 2
