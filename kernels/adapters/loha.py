"""LoHa: the element-wise product of two matrices of rank K, which has a rank of up to K^2."""

from typing import NamedTuple

import numpy as np

from refsd.kernels.adapters.layer import Layer, row_blocks
from refsd.kernels.adapters.lora import LoRA


class LoHa(NamedTuple):
    """
        delta = scale (w1_a w1_b) * (w2_a w2_b)                                   * is element-wise
        with Tucker cores, each half: sum_{k, l} t[k, l, r, s] w_a[k, o] w_b[l, i]

    w1_a, w2_a: [O, K], with cores [K, O]
    w1_b, w2_b: [K, I] (a convolution's: [K, I R S]), with cores [K, I]
    t1, t2:     [K, K, R, S] or None
    scale:      alpha / rank

    Sums accumulate in the dtype of x, in BLAS's order.
    Source: Hyeon-Woo, Ye-Bin & Oh 2021 (FedPara), eq. 2 and proposition 3; LyCORIS loha.py.
    """

    w1_a: np.ndarray
    w1_b: np.ndarray
    w2_a: np.ndarray
    w2_b: np.ndarray
    t1: np.ndarray | None = None
    t2: np.ndarray | None = None
    scale: float = 1.0

    def rows(self, shape, which: slice):
        """Compute only the rows `which` of the delta. shape: the weight's shape -> [rows, ...]"""
        first = _half(self.w1_a, self.w1_b, self.t1, shape, which)
        first *= _half(self.w2_a, self.w2_b, self.t2, shape, which)
        first *= self.scale
        return first

    def delta(self, weight, strength=1.0):
        """The definition. weight: [O, I] or [O, I, R, S], only its shape counts -> the same shape"""
        return strength * self.rows(weight.shape, slice(None))

    def forward(self, x, base, layer: Layer, out, strength=1.0):
        """Add delta's output to `out`. base is not read.

        Without cores it equals a LoRA of rank K1 K2, which is used if it takes less work:
            up[o, k l] = w1_a[o, k] w2_a[o, l],  down[k l, i] = w1_b[k, i] w2_b[l, i]
        Otherwise the delta is made in blocks of rows, two blocks of 1 MB at a time.
        """
        shape = layer.weight.shape
        rank, inputs = self.w1_a.shape[1] * self.w2_a.shape[1], int(np.prod(shape[1:]))
        if self.t1 is None and self.t2 is None and rank * (shape[0] + inputs) < shape[0] * inputs:
            self.as_lora(shape).forward(x, base, layer, out, strength)
            return
        channels = np.moveaxis(out, layer.axis, 0)
        for which in row_blocks(shape, x.itemsize):
            part = layer.apply(x, self.rows(shape, which))
            part *= strength
            channels[which] += np.moveaxis(part, layer.axis, 0)

    def as_lora(self, shape) -> LoRA:
        """Convert to a LoRA of rank K1 K2 with the same delta; only without cores. shape: the weight's shape"""
        first, second = (b.reshape(len(b), -1) for b in (self.w1_b, self.w2_b))
        down = (first[:, None] * second).reshape(-1, first.shape[1])
        up = (self.w1_a[:, :, None] * self.w2_a[:, None]).reshape(shape[0], -1)
        return LoRA(down.reshape(-1, *shape[1:]), up, None, self.scale)


def _half(a, b, t, shape, which: slice):
    if t is None:
        return (a[which] @ b.reshape(len(b), -1)).reshape(-1, *shape[1:])
    mixed = np.tensordot(a[:, which].T, t, 1)
    return np.ascontiguousarray(np.tensordot(mixed, b, ((1,), (0,))).transpose(0, 3, 1, 2))
