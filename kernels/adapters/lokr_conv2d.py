"""Apply LoKr's convolution through its factors: convolve images of few channels with W2, mix them with W1."""

from typing import NamedTuple

import numpy as np

from refsd.kernels.adapters.layer import Conv2d


class Sliding(NamedTuple):
    """W2 as a sequence of convolutions.

    filters: each [out, in, R, S], or [out, in] for a 1x1
    place:   index of the filter with the layer's geometry; earlier filters act on the input, later ones on the
    output
    """

    filters: tuple[np.ndarray, ...]
    place: int

    def __call__(self, h, layer: Conv2d):
        """h: [1, I2, H, W] -> [1, O2, P, Q]"""
        for i, weight in enumerate(self.filters):
            h = layer.apply(h, weight) if i == self.place else layer.pointwise(h, weight)
        return h

    def products(self, inputs, outputs):
        """Count multiplications. inputs, outputs: pixels of the input and output image"""
        return sum(f.size * (inputs if i < self.place else outputs) for i, f in enumerate(self.filters))

    def held(self, inputs, outputs):
        """Count the numbers in buffers: the input's copy, the patches, and every filter's result."""
        own = self.filters[self.place][0].size * outputs + self.filters[0].shape[1] * inputs
        return own + sum(len(f) * (inputs if i < self.place else outputs) for i, f in enumerate(self.filters))


class Blocks(NamedTuple):
    """Block sizes. rows: output rows in a block; group: images of one factor in a block"""

    rows: int
    group: int


def add_conv2d(x, w1, w2: Sliding, layer: Conv2d, out, share):
    """Add the convolution of x with kron(W1, W2) to `out`.

        W2 first:  h[i1] = W2 * x[i1];   out[o1] += sum_i1 W1[o1, i1] h[i1]
        W1 first:  z[o1] = sum_i1 W1[o1, i1] x[i1];   out[o1] += W2 * z[o1]

    x:     [N, I1 I2, H, W]
    w1:    [O1, I1], multiplied by the scale
    out:   [N, O1 O2, P, Q], C-contiguous
    share: limit of all buffers, as a share of the weight's size; at least one row of one image

    The cheaper order is chosen: W2 first takes one convolution for each column of W1, W1 first one for each row.
    """
    N, _, H, W = x.shape
    P, Q = out.shape[2:]
    O1, I1 = w1.shape
    x, y = x.reshape(N, I1, -1, H, W), out.reshape(N, O1, -1, P, Q)
    assert np.shares_memory(y, out) or not out.size, "out must be contiguous"
    sliding = w2.products(H * W, P * Q)
    w2_first = I1 * sliding + w1.size * y[0, 0].size <= O1 * sliding + w1.size * x[0, 0].size
    add = _w2_first if w2_first else _w1_first
    blocks = _blocks(w2, layer, (H, W), (P, Q), int(share * layer.weight.size), w2_first)
    for n in range(N):
        for first in range(0, P, blocks.rows):
            last = min(first + blocks.rows, P)
            rows, part = _input_rows(layer, H, first, last)
            add(x[n, :, :, rows], w1, w2, part, y[n, :, :, first:last], blocks.group)


def _w2_first(x, w1, w2, layer, y, group):
    O1, O2, P, Q = y.shape
    for first in range(0, len(x), group):
        which = slice(first, min(first + group, len(x)))
        h = np.empty((which.stop - first, O2 * P * Q), x.dtype)
        for i, image in enumerate(x[which]):
            h[i] = w2(np.ascontiguousarray(image)[None], layer).ravel()
        for o in range(0, O1, group):
            y[o : o + group] += np.matmul(w1[o : o + group, which], h).reshape(-1, O2, P, Q)


def _w1_first(x, w1, w2, layer, y, group):
    for o in range(0, len(y), group):
        # [group, I1] times [I1, W] for each channel and row -> [I2, H, group, W]
        z = np.matmul(w1[o : o + group], x.transpose(1, 2, 0, 3))
        for i in range(z.shape[2]):
            y[o + i] += w2(np.ascontiguousarray(z[:, :, i])[None], layer)[0]


def _input_rows(layer: Conv2d, H, first, last) -> tuple[slice, Conv2d]:
    """Find the input rows that output rows first..last read. -> these rows, the layer with the remaining padding"""
    top, _, left, right = layer.padding
    above = first * layer.stride - top
    below = (last - 1) * layer.stride - top + (layer.weight.shape[2] - 1) * layer.dilation + 1
    rows = slice(min(max(above, 0), H), max(min(below, H), 0))
    missing = below - above - max(0, rows.stop - rows.start)
    over = min(missing, max(0, -above))
    return rows, layer._replace(padding=(over, missing - over, left, right))


def _blocks(w2: Sliding, layer: Conv2d, image, output, allowed, w2_first) -> Blocks:
    """Choose block sizes: rows that fill half of the limit, and images that fill the rest."""
    (H, W), (P, Q) = image, output
    span = (layer.weight.shape[2] - 1) * layer.dilation + 1

    def pixels(rows):
        return min(H, (rows - 1) * layer.stride + span) * W, rows * Q

    rows = P
    while rows > 1 and w2.held(*pixels(rows)) > allowed // 2:
        rows -= 1
    inputs, outputs = pixels(rows)
    # Buffers. W2 first: a group of W2's results, and a group of their mixtures. W1 first: a group of mixtures.
    each = 2 * len(w2.filters[-1]) * outputs if w2_first else w2.filters[0].shape[1] * inputs
    return Blocks(rows, max(1, (allowed - w2.held(inputs, outputs)) // each))
