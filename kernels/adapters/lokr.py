"""LoKr: a Kronecker product of two small matrices, applied without computing the product."""

from typing import NamedTuple

import numpy as np

from refsd.kernels.adapters.layer import Conv2d, Layer, Linear, as_it_is, row_blocks
from refsd.kernels.adapters.lokr_conv2d import Sliding, add_conv2d

# Limit of all buffers of a block together, as a share of the delta's bytes; at least one token or output row.
_SHARE = 1 / 28


class LoKr(NamedTuple):
    """
        delta = scale kron(W1, W2):
        delta[o1 O2 + o2, i1 I2 + i2, r, s] = scale W1[o1, i1] W2[o2, i2, r, s]

    W1, the slow one, is w1 or w1_a w1_b; W2, the fast one, is w2, or w2_a w2_b, or with a Tucker core
    W2[o2, i2, r, s] = sum_{k, l} t2[k, l, r, s] w2_a[k, o2] w2_b[l, i2].

    w1:   [O1, I1], or (w1_a [O1, K], w1_b [K, I1])
    w2:   [O2, I2] (a convolution's: [O2, I2, R, S]), or (w2_a [O2, K], w2_b [K, I2 R S]),
          or (w2_a [K, O2], w2_b [K, I2], t2 [K, K, R, S])
    scale: see scales.py; every trainer has its own rule
    rank:  K, or None if neither factor is decomposed; forward does not use it

    Sums accumulate in the dtype of x, in BLAS's order.
    Source: Yeh et al. 2023 (LyCORIS), section 3.3; Edalati et al. 2022, section 3.2; LyCORIS lokr.py.
    """

    w1: np.ndarray | tuple[np.ndarray, np.ndarray]
    w2: np.ndarray | tuple[np.ndarray, ...]
    scale: float = 1.0
    rank: int | None = None

    def full_w1(self):
        """The slow factor W1, multiplied out. [O1, I1]"""
        return self.w1 if isinstance(self.w1, np.ndarray) else self.w1[0] @ self.w1[1]

    def full_w2(self, kernel=()):
        """Multiply out the fast factor W2. -> [O2, I2] or [O2, I2, R, S]. kernel: (R, S), if w2 does not show it"""
        if isinstance(self.w2, np.ndarray):
            return self.w2.reshape(*self.w2.shape[:2], *kernel)
        if len(self.w2) == 3:
            a, b, t = self.w2
            return np.tensordot(np.tensordot(a.T, t, 1), b, ((1,), (0,))).transpose(0, 3, 1, 2)
        a, b = self.w2
        return (a @ b.reshape(len(b), -1)).reshape(len(a), -1, *kernel)

    def rows(self, shape, which: slice, settled=as_it_is):
        """Compute only the rows `which` of the delta. -> [rows, ...]

        shape:   the weight's shape
        settled: rounds each product's result
        """
        w1, w2 = (w if isinstance(of, np.ndarray) else settled(w) for w, of in self._full(shape[2:]))
        o1, o2 = np.divmod(np.arange(shape[0])[which], len(w2))
        ones = (1,) * (w2.ndim - 2)
        product = settled(w1[o1].reshape(len(o1), -1, 1, *ones) * w2[o2][:, None])
        product *= self.scale
        return settled(product).reshape(-1, *shape[1:])

    def _full(self, kernel):
        """Return both factors multiplied out, and as given."""
        return (self.full_w1(), self.w1), (self.full_w2(kernel), self.w2)

    def delta(self, weight, strength=1.0):
        """The definition, in full. weight: [O, I] or [O, I, R, S], only its shape counts -> the same shape"""
        return strength * self.rows(weight.shape, slice(None))

    def forward(self, x, base, layer: Layer, out, strength=1.0):
        """Add delta's output to `out`, through the factors. base is not read.

            Y = W1 X W2^T          X [I1, I2] is one token's input, folded; Y [O1, O2] its output

        The cheaper order is chosen: X W2^T first takes I1 I2 O2 + O1 I1 O2 products, W1 X first O1 I1 I2 + O1 I2
        O2; the delta would take O1 O2 I1 I2. In a convolution W2 is applied to I1 images of I2 channels, and W1
        mixes them. Tokens or output rows are processed in blocks, so that buffers stay below 1/24 of the delta.

        An engine that rounds stored results rounds the delta as PEFT computes it, and then so does this method.
        """
        if layer.settled is not as_it_is:
            self._replace(scale=self.scale * strength)._by_rows(x, layer, out)
        elif isinstance(layer, Linear):
            self._linear(x, layer, out, self.scale * strength)
        else:
            self._conv2d(x, layer, out, self.scale * strength)

    def _by_rows(self, x, layer: Layer, out):
        shape = layer.weight.shape
        for which in row_blocks(shape, x.itemsize):
            part = layer.apply(x, self.rows(shape, which, layer.settled))
            out[(..., which) if isinstance(layer, Linear) else (slice(None), which)] += layer.settled(part)

    def _linear(self, x, layer: Linear, out, scale):
        w1, w2 = _chain(self.w1), _chain(self.w2)
        O1, I1 = len(w1[-1]), w1[0].shape[1]
        O2, I2 = len(w2[-1]), w2[0].shape[1]
        w1 = (*w1[:-1], w1[-1] * w1[-1].dtype.type(scale))
        x, y = x.reshape(-1, I1, I2), out.reshape(-1, O1, O2)
        assert np.shares_memory(y, out) or not out.size, "out must be contiguous"
        w2_first = I1 * _cost(w2) + O2 * _cost(w1) <= O1 * _cost(w2) + I2 * _cost(w1)
        token = max(I1, O1) * (max(I2, O2) + max(map(len, w2)))
        step = max(1, int(_SHARE * layer.weight.size) // token)
        for first in range(0, len(x), step):
            h = x[first : first + step]
            if w2_first:
                h = _left(w1, _right(h, w2, layer), layer)
            else:
                h = _right(_left(w1, h, layer), w2, layer)
            y[first : first + step] += h

    def _conv2d(self, x, layer: Conv2d, out, scale):
        w1 = self.full_w1()
        add_conv2d(x, w1 * w1.dtype.type(scale), self._sliding(layer.weight.shape[2:]), layer, out, _SHARE)

    def _sliding(self, kernel):
        if isinstance(self.w2, np.ndarray):
            return Sliding((self.full_w2(kernel),), 0)
        if len(self.w2) == 3:
            a, b, t = self.w2
            return Sliding((b, t, np.ascontiguousarray(a.T)), 1)
        a, b = self.w2
        return Sliding((b.reshape(len(b), -1, *kernel), a), 0)


def _chain(w) -> tuple[np.ndarray, ...]:
    """List the matrices that apply a factor: its parts, or their product if that is cheaper."""
    if isinstance(w, np.ndarray):
        return (w.reshape(w.shape[:2]),)
    a, b = w
    return (b, a) if b.size + a.size < len(a) * b.shape[1] else (a @ b,)


def _cost(chain) -> int:
    return sum(w.size for w in chain)


def _right(h, chain, layer: Linear):
    """Compute h W2^T [T, A, O2] from h [T, A, I2], as one product over all rows."""
    for w in chain:
        h = layer.apply(h, w)
    return h


def _left(chain, h, layer: Linear):
    """Compute W1 h [T, O1, B] from h [T, I1, B], as one product for each token."""
    for w in chain:
        h = layer.matmul(w, layer.activation(h))
    return h
