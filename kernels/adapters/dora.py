"""DoRA: the merged weight's rows, or columns, rescaled to lengths that were learned."""

from typing import NamedTuple

import numpy as np

from refsd.kernels.adapters.layer import Layer, row_blocks, without_bias
from refsd.kernels.adapters.loha import LoHa
from refsd.kernels.adapters.lokr import LoKr
from refsd.kernels.adapters.lora import LoRA


class DoRA(NamedTuple):
    """
        merged = magnitude / (|weight + delta| + eps) * (weight + delta)

    on_input False: lengths of the O rows (PEFT; LyCORIS with wd_on_out, its default)
    on_input True:  lengths of the I columns, over O, R and S (LyCORIS without wd_on_out; the first DoRA files)

    inner:     LoRA, LoHa or LoKr
    magnitude: [O] or [I]
    eps:       PEFT 0; LyCORIS and ComfyUI the machine epsilon of the weight's type
    of_base:   lengths of the weight's rows, without the delta: what ComfyUI divides by on rows, and nobody trains
    measured:  the lengths, where `on` has seen the weight already; else they are measured at each forward

    With a strength s: weight + s (merged - weight), as ComfyUI. LyCORIS instead rescales weight + delta, whatever
    its multiplier, by 1 + s (magnitude / length - 1): at 0 its delta is still there.
    Source: Liu et al. 2024, eq. 5; PEFT tuners/lora/dora.py; LyCORIS functional/general.py, weight_decompose.
    """

    inner: LoRA | LoHa | LoKr
    magnitude: np.ndarray
    on_input: bool = False
    eps: float = 0.0
    of_base: bool = False
    measured: np.ndarray | None = None

    def on(self, weight):
        """The same for this weight alone, whose lengths are measured once."""
        return self._replace(measured=self.lengths(weight))

    def lengths(self, weight):
        """|weight + delta| without the delta: [O] or [I].

        LoRA's rows from Gram products, K (O I + K I + K O) of them; the others, and columns, a block of rows at a
        time, for the price of making the delta once and never holding more than 1 MB of it.
        """
        if self.of_base:
            return np.sqrt(np.einsum("oi,oi->o", *(weight.reshape(len(weight), -1),) * 2))
        if isinstance(self.inner, LoRA) and self.inner.mid is None and not self.on_input:
            return _row_lengths(weight, self.inner)
        square = np.zeros(weight.shape[1] if self.on_input else weight.shape[0], weight.dtype)
        for which in row_blocks(weight.shape, weight.itemsize):
            merged = weight[which] + self.inner.rows(weight.shape, which)
            merged *= merged
            if self.on_input:
                square += np.moveaxis(merged, 1, 0).reshape(len(square), -1).sum(axis=1)
            else:
                square[which] = merged.reshape(len(merged), -1).sum(axis=1)
        return np.sqrt(square)

    def _gain(self, weight):
        lengths = self.lengths(weight) if self.measured is None else self.measured
        return self.magnitude / (lengths + self.eps)

    def delta(self, weight, strength=1.0):
        """The definition. weight: [O, I] or [O, I, R, S] -> the same shape"""
        merged = weight + self.inner.delta(weight)
        axes = (0, *range(2, weight.ndim)) if self.on_input else tuple(range(1, weight.ndim))
        length = np.sqrt(np.sum((weight if self.of_base else merged) ** 2, axis=axes, keepdims=True))
        return strength * (self.magnitude.reshape(length.shape) / (length + self.eps) * merged - weight)

    def forward(self, x, base, layer: Layer, out, strength=1.0):
        """Add delta's output to `out`. base: the layer's own output, its bias included.

        On rows:    (gain - 1) (base - bias) + gain inner(x): the inner forward and two passes over the output.
        On columns: the layer on (gain - 1) x, and the inner forward on gain x.
        """
        gain = self._gain(layer.weight).astype(x.dtype)
        if self.on_input:
            x = x * layer.channels(gain)
            part = layer.apply(x, layer.weight) - without_bias(base, layer)
            self.inner.forward(x, base, layer, part)
        else:
            part = np.zeros_like(base)
            self.inner.forward(x, base, layer, part)
            part *= layer.channels(gain)
            part += layer.channels(gain - 1) * without_bias(base, layer)
        part *= strength
        out += part


def _row_lengths(weight, lora: LoRA):
    """|w + s u D|^2 = |w|^2 + 2 s u (D w) + s^2 u (D D^T) u^T for each row w of the weight and u of up."""
    flat, down = weight.reshape(len(weight), -1), lora.down.reshape(len(lora.down), -1)
    up = lora.scale * lora.up
    square = np.einsum("oi,oi->o", flat, flat) + 2 * np.einsum("ok,ok->o", up, flat @ down.T)
    square += np.einsum("ok,ok->o", up, up @ (down @ down.T))
    return np.sqrt(np.maximum(square, 0))
