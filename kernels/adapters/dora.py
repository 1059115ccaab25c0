"""DoRA: rescale the merged weight's rows or columns to learned lengths."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from refsd.kernels.adapters.layer import Layer, row_blocks, without_bias
from refsd.kernels.adapters.loha import LoHa
from refsd.kernels.adapters.lokr import LoKr
from refsd.kernels.adapters.lora import LoRA
from refsd.kernels.adapters.strengths import DoRAShares, dora_lycoris


class DoRA(NamedTuple):
    """
        merged = magnitude / (|weight + delta| + eps) * (weight + delta)

    on_input False: lengths of the O rows (PEFT; LyCORIS with wd_on_out, its default)
    on_input True:  lengths of the I columns, over O, R and S (LyCORIS without wd_on_out; the first DoRA files)

    inner:     LoRA, LoHa or LoKr
    magnitude: [O] or [I]
    eps:       PEFT and A1111 0; LyCORIS and ComfyUI the machine epsilon of the weight's type
    of_base:   True: use lengths of the weight's rows without the delta, as ComfyUI does on rows, but no trainer
    shares:    how a strength enters: a function of strengths.py
    measured:  the lengths, if `on` has computed them; otherwise each forward computes them

    Source: Liu et al. 2024, eq. 5; PEFT tuners/lora/dora.py; LyCORIS functional/general.py, weight_decompose.
    """

    inner: LoRA | LoHa | LoKr
    magnitude: np.ndarray
    on_input: bool = False
    eps: float = 0.0
    of_base: bool = False
    shares: Callable[[float], DoRAShares] = dora_lycoris
    measured: np.ndarray | None = None

    def on(self, weight, strength=1.0):
        """Return a copy for this weight and strength only, whose lengths are computed once."""
        return self._replace(measured=self.lengths(weight, self.shares(strength).inner))

    def lengths(self, weight, inner=1.0):
        """Compute |weight + inner delta| of rows or columns, without storing the delta. -> [O] or [I]

        LoRA's rows use Gram products, K (O I + K I + K O) multiplications. Other adapters, and columns, make the
        delta once in blocks of rows of at most 1 MB.
        """
        if self.of_base:
            return np.sqrt(np.einsum("oi,oi->o", *(weight.reshape(len(weight), -1),) * 2))
        if isinstance(self.inner, LoRA) and self.inner.mid is None and not self.on_input:
            return _row_lengths(weight, self.inner, inner)
        return _lengths(weight, self.inner, inner, self.on_input)

    def delta(self, weight, strength=1.0):
        """The definition. weight: [O, I] or [O, I, R, S] -> the same shape"""
        whole, gain, inner = self.shares(strength)
        merged = weight + self.inner.delta(weight, inner)
        axes = (0, *range(2, weight.ndim)) if self.on_input else tuple(range(1, weight.ndim))
        length = np.sqrt(np.sum((weight if self.of_base else merged) ** 2, axis=axes, keepdims=True))
        factor = 1 + gain * (self.magnitude.reshape(length.shape) / (length + self.eps) - 1)
        return whole * (factor * merged - weight)

    def forward(self, x, base, layer: Layer, out, strength=1.0):
        """Add delta's output to `out`. base: the layer's own output, its bias included.

        On rows:    (factor - 1) (base - bias) + factor inner(x): the inner forward and two passes over the output.
        On columns: the layer on (factor - 1) x, and the inner forward on factor x.
        """
        whole, gain, inner = self.shares(strength)
        lengths = self.lengths(layer.weight, inner) if self.measured is None else self.measured
        factor = (1 + gain * (self.magnitude / (lengths + self.eps) - 1)).astype(x.dtype)
        if self.on_input:
            x = x * layer.channels(factor)
            part = layer.apply(x, layer.weight) - without_bias(base, layer)
            self.inner.forward(x, base, layer, part, inner)
        else:
            part = np.zeros_like(base)
            self.inner.forward(x, base, layer, part, inner)
            part *= layer.channels(factor)
            part += layer.channels(factor - 1) * without_bias(base, layer)
        part *= whole
        out += part


class CrossedDoRA(NamedTuple):
    """
        merged[o, i] = magnitude[o] / |column i of weight + delta| * (weight + delta)[o, i]

    A1111's treatment of a DoRA on rows: it divides by the lengths of the columns although the magnitudes are of
    rows. With a strength s: weight + s (merged - weight).

    inner:     LoRA, LoHa or LoKr
    magnitude: [O]

    Source: A1111 extensions-builtin/Lora/network.py, apply_weight_decompose.
    """

    inner: LoRA | LoHa | LoKr
    magnitude: np.ndarray

    def delta(self, weight, strength=1.0):
        """The definition. weight: [O, I] or [O, I, R, S] -> the same shape"""
        merged = weight + self.inner.delta(weight)
        length = np.sqrt(np.sum(merged**2, axis=(0, *range(2, weight.ndim)), keepdims=True))
        return strength * (self.magnitude.reshape(-1, *(1,) * (weight.ndim - 1)) / length * merged - weight)

    def forward(self, x, base, layer: Layer, out, strength=1.0):
        """Add delta's output to `out`: the layer and the inner forward on x / lengths, with rescaled rows."""
        lengths = _lengths(layer.weight, self.inner, 1.0, on_input=True)
        x = x / layer.channels(lengths.astype(x.dtype))
        part = layer.apply(x, layer.weight)
        self.inner.forward(x, base, layer, part)
        part *= layer.channels(self.magnitude.astype(x.dtype))
        part -= without_bias(base, layer)
        part *= strength
        out += part


def _lengths(weight, inner, strength, on_input):
    """Compute the lengths of the rows or columns of weight + delta, in blocks of rows. -> [O] or [I]"""
    square = np.zeros(weight.shape[1] if on_input else weight.shape[0], weight.dtype)
    for which in row_blocks(weight.shape, weight.itemsize):
        merged = weight[which] + strength * inner.rows(weight.shape, which)
        merged *= merged
        if on_input:
            square += np.moveaxis(merged, 1, 0).reshape(len(square), -1).sum(axis=1)
        else:
            square[which] = merged.reshape(len(merged), -1).sum(axis=1)
    return np.sqrt(square)


def _row_lengths(weight, lora: LoRA, strength):
    """Compute |w + s u D|^2 = |w|^2 + 2 s u (D w) + s^2 u (D D^T) u^T for each row w of the weight and u of up."""
    flat, down = weight.reshape(len(weight), -1), lora.down.reshape(len(lora.down), -1)
    up = strength * lora.scale * lora.up
    square = np.einsum("oi,oi->o", flat, flat) + 2 * np.einsum("ok,ok->o", up, flat @ down.T)
    square += np.einsum("ok,ok->o", up, up @ (down @ down.T))
    return np.sqrt(np.maximum(square, 0))
