"""LoRA: add a product of two thin matrices to the weight."""

from typing import NamedTuple

import numpy as np

from refsd.kernels.adapters.layer import Layer, Linear


class LoRA(NamedTuple):
    """
        linear:              delta = scale up down
        convolution:         delta[o, i, r, s] = scale sum_k up[o, k] down[k, i, r, s]
        with a Tucker core:  delta[o, i, r, s] = scale sum_{k, l} up[o, k] mid[k, l, r, s] down[l, i]

    down:  [K, I], for a convolution without core [K, I, R, S]
    up:    [O, K]
    mid:   [K, K, R, S] or None
    scale: alpha / rank, see scales.py
    bias:  [O] or None, already multiplied by the scale: PEFT's lora_bias

    Sums accumulate in the dtype of x, in BLAS's order.
    Source: Hu et al. 2021, section 4.1; LyCORIS locon.py (convolution and core).
    """

    down: np.ndarray
    up: np.ndarray
    mid: np.ndarray | None = None
    scale: float = 1.0
    bias: np.ndarray | None = None

    def rows(self, shape, which: slice):
        """Compute only the rows `which` of the delta. shape: the weight's shape -> [rows, ...]"""
        up = self.scale * self.up[which]
        if self.mid is None:
            return (up @ self.down.reshape(len(self.down), -1)).reshape(-1, *shape[1:])
        mixed = np.tensordot(up, self.mid, 1)
        return np.tensordot(mixed, self.down, ((1,), (0,))).transpose(0, 3, 1, 2)

    def delta(self, weight, strength=1.0):
        """The definition. weight: [O, I] or [O, I, R, S], only its shape counts -> the same shape"""
        return strength * self.rows(weight.shape, slice(None))

    def bias_delta(self, bias, strength=1.0):
        """Return the difference of the layer's bias, [O]; None if there is none."""
        return None if self.bias is None else strength * self.scale * self.bias

    def forward(self, x, base, layer: Layer, out, strength=1.0):
        """Add delta's output to `out`: down to K channels, and up again. base is not read.

        Cost: K (I + O) products a token; the delta would cost O I K once, and I O a token.
        """
        if isinstance(layer, Linear):
            wide = layer.apply(layer.apply(x, self.down), self.up)
        elif self.mid is None:
            wide = layer.pointwise(layer.apply(x, self.down.reshape(-1, *layer.weight.shape[1:])), self.up)
        else:
            wide = layer.pointwise(layer.apply(layer.pointwise(x, self.down), self.mid), self.up)
        if self.bias is not None:
            wide += layer.channels(self.bias.astype(wide.dtype))
        wide = layer.settled(wide)
        wide *= self.scale * strength
        out += layer.settled(wide)
