"""GLoRA: LoRA on the layer's output and, through the weight, on its input."""

from typing import NamedTuple

import numpy as np

from refsd.kernels.adapters.layer import Layer, Linear


class GLoRA(NamedTuple):
    """
        delta = scale (weight a1 a2 + b1 b2)            a1 a2 acts on the input channels

    a1:    [I, K]
    a2:    [K, I]
    b1:    [O, K]
    b2:    [K, I], for a convolution [K, I, R, S]
    scale: alpha / rank

    Sums accumulate in the dtype of x, in BLAS's order.
    Source: Chavan et al. 2023, eq. 1; LyCORIS glora.py.
    """

    a1: np.ndarray
    a2: np.ndarray
    b1: np.ndarray
    b2: np.ndarray
    scale: float = 1.0

    def delta(self, weight, strength=1.0):
        """The definition. weight: [O, I] or [O, I, R, S] -> the same shape"""
        through = np.moveaxis(np.tensordot(weight, self.a1 @ self.a2, ((1,), (0,))), -1, 1)
        beside = (self.b1 @ self.b2.reshape(len(self.b2), -1)).reshape(weight.shape)
        return strength * self.scale * (through + beside)

    def forward(self, x, base, layer: Layer, out, strength=1.0):
        """Add delta's output to `out`: the layer on a1 a2 x, and b1 b2 x. base is not read.

        Cost: one more run of the layer, and products with 4 K channels in total.
        """
        if isinstance(layer, Linear):
            inside = layer.apply(layer.apply(x, self.a2), self.a1)
            beside = layer.apply(layer.apply(x, self.b2), self.b1)
        else:
            inside = layer.pointwise(layer.pointwise(x, self.a2), self.a1)
            beside = layer.pointwise(layer.apply(x, self.b2.reshape(-1, *layer.weight.shape[1:])), self.b1)
        beside += layer.apply(inside, layer.weight)
        beside *= self.scale * strength
        out += beside
