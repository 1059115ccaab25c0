"""LoHa: the element-wise product of two low-rank matrices, of rank K^2 from factors of rank K."""

from typing import NamedTuple

import numpy as np

from refsd.kernels.adapters.layer import Layer, row_blocks


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
        """The delta's rows `which` alone. shape: of the weight -> [rows, ...]"""
        first = _half(self.w1_a, self.w1_b, self.t1, shape, which)
        first *= _half(self.w2_a, self.w2_b, self.t2, shape, which)
        first *= self.scale
        return first

    def delta(self, weight, strength=1.0):
        """The definition. weight: [O, I] or [O, I, R, S], only its shape counts -> the same shape"""
        return strength * self.rows(weight.shape, slice(None))

    def forward(self, x, base, layer: Layer, out, strength=1.0):
        """Add delta's output to `out`, a block of the delta's rows at a time: two blocks of 1 MB. base is not read.

        An element-wise product does not pass through a sum over I: the delta's elements must be made. They need
        not be there all at once.
        """
        channels = np.moveaxis(out, layer.axis, 0)
        for which in row_blocks(layer.weight.shape, x.itemsize):
            part = layer.apply(x, self.rows(layer.weight.shape, which))
            part *= strength
            channels[which] += np.moveaxis(part, layer.axis, 0)


def _half(a, b, t, shape, which: slice):
    if t is None:
        return (a[which] @ b.reshape(len(b), -1)).reshape(-1, *shape[1:])
    mixed = np.tensordot(a[:, which].T, t, 1)
    return np.ascontiguousarray(np.tensordot(mixed, b, ((1,), (0,))).transpose(0, 3, 1, 2))
