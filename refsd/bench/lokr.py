"""Benchmark rows for a layer with LoKr at SDXL's sizes: applied through its factors, or merged into the weight."""

import tracemalloc
from collections.abc import Callable

import numpy as np

from refsd.bench.row import Column, Ready, Row, normal


def _row(what: str, x_shape: tuple[int, ...], weight_shape: tuple[int, ...], w1: tuple[int, int]) -> Row:
    """Make a row. w1: shape of LoKr's first Kronecker factor; weight_shape / w1 is the shape of the second."""
    O, I, *taps = weight_shape
    w2 = (O // w1[0], I // w1[1], *taps)
    fan_in = int(np.prod(weight_shape[1:]))

    def parts():
        from refsd.kernels.adapters import Conv2d, Linear, LoKr

        weight = normal("weight", *weight_shape, scale=fan_in**-0.5)
        layer = Conv2d(weight, None, padding=(1, 1, 1, 1)) if taps else Linear(weight, None)
        lokr = LoKr(normal("w1", *w1, scale=0.1), normal("w2", *w2, scale=0.1))
        x = normal("x", *x_shape)
        return lokr, layer, x, layer.apply(x, weight)

    def whole(_):
        lokr, layer, x, base = parts()

        def call() -> None:
            y = layer.apply(x, layer.weight)
            lokr.forward(x, y, layer, y)

        call()
        return Ready(call, facts={"extra MiB": (_peak(call) - base.nbytes) / 2**20})

    def adapter(_):
        lokr, layer, x, base = parts()
        out = base.copy()
        return Ready(lambda: lokr.forward(x, base, layer, out))

    def merged(_):
        lokr, layer, x, base = parts()
        call = lambda: layer.apply(x, layer.weight + lokr.delta(layer.weight))
        call()
        return Ready(call, facts={"extra MiB": (_peak(call) - base.nbytes) / 2**20})

    def alone(_):
        _, layer, x, _ = parts()
        return Ready(lambda: layer.apply(x, layer.weight))

    columns = {
        "layer and LoKr": Column(("refsd",), whole),
        "merged, and applied": Column(("refsd",), merged),
        "the layer alone": Column(("refsd",), alone),
        "LoKr alone": Column(("refsd",), adapter),
    }
    return Row(f"lokr/{what}", columns, bytes=4 * int(np.prod(weight_shape)))


def _peak(call: Callable[[], object]) -> int:
    """Measure the peak of a call's own allocations, in bytes."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


ROWS = [
    _row("attention 1280 to 1280, 4096 tokens", (1, 4096, 1280), (1280, 1280), (32, 32)),
    _row("attention 640 to 640, 4096 tokens", (1, 4096, 640), (640, 640), (20, 20)),
    _row("attention 2048 to 1280, 77 tokens", (1, 77, 2048), (1280, 2048), (32, 32)),
    _row("convolution 1280 to 1280, 32x32", (1, 1280, 32, 32), (1280, 1280, 3, 3), (32, 32)),
]
