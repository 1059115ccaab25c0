"""The layer that an adapter modifies: its weight, its bias, and the function that applies a weight."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from refsd.kernels.conv2d_im2col import conv2d_im2col
from refsd.kernels.linear import linear


def as_it_is(x):
    return x


def convolve(x, weight, stride, padding, matmul=np.matmul):
    """Call conv2d_im2col without a bias."""
    return conv2d_im2col(x, weight, np.zeros(len(weight), x.dtype), stride, padding, matmul=matmul)


class Linear(NamedTuple):
    """A linear layer.

    weight:     [O, I]
    bias:       [O] or None
    activation: rounds the input of a product as the engine does; the identity if it does not round
    settled:    rounds a stored result as the engine does; the identity if it does not round
    matmul:     np.matmul, or another with its arguments whose sums accumulate as the engine's do
    """

    weight: np.ndarray
    bias: np.ndarray | None = None
    activation: Callable[[np.ndarray], np.ndarray] = as_it_is
    settled: Callable[[np.ndarray], np.ndarray] = as_it_is
    matmul: Callable[..., np.ndarray] = np.matmul

    axis = -1  # of the channels, in x and in the output

    def apply(self, x, weight):
        """Apply any weight [O', I'] to x [..., I'], without a bias. -> [..., O']"""
        return linear(self.activation(x), weight, matmul=self.matmul)

    def channels(self, values):
        """[O] as it is broadcast over an output."""
        return values


class Conv2d(NamedTuple):
    """A convolution.

    weight:   [O, I, R, S]
    bias:     [O] or None
    stride:   in pixels
    padding:  (top, bottom, left, right), in pixels
    dilation: distance of a filter's taps, in pixels
    product:  (x [N, I, H, W], weight [O, I, R, S], stride, padding) -> [N, O, P, Q]; rounds x as the engine does
    settled:  rounds a stored result as the engine does; the identity if it does not round
    """

    weight: np.ndarray
    bias: np.ndarray | None = None
    stride: int = 1
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: int = 1
    product: Callable[..., np.ndarray] = convolve
    settled: Callable[[np.ndarray], np.ndarray] = as_it_is

    axis = 1  # of the channels, in x and in the output

    def apply(self, x, weight):
        """Apply another weight [O', I', R, S] with this layer's geometry, without a bias."""
        return self.product(x, dilated(weight, self.dilation), self.stride, self.padding)

    def pointwise(self, x, weight):
        """Apply a 1x1 convolution. x: [N, C, H, W], weight: [O, C] -> [N, O, H, W]"""
        return self.product(x, weight.reshape(*weight.shape[:2], 1, 1), 1, (0, 0, 0, 0))

    def channels(self, values):
        """[O] as it is broadcast over an output."""
        return values[:, None, None]


Layer = Linear | Conv2d


def dilated(weight, dilation):
    """Insert zeros between a filter's taps, so that an ordinary convolution with it equals a dilated one.

    weight: [O, I, R, S] -> [O, I, (R - 1) dilation + 1, (S - 1) dilation + 1]
    """
    if dilation == 1:
        return weight
    O, I, R, S = weight.shape
    wide = np.zeros((O, I, (R - 1) * dilation + 1, (S - 1) * dilation + 1), weight.dtype)
    wide[:, :, ::dilation, ::dilation] = weight
    return wide


def without_bias(base, layer: Layer):
    """Subtract the layer's bias from its output. base: [..., O] or [N, O, P, Q]"""
    return base if layer.bias is None else base - layer.channels(layer.bias)


def row_blocks(shape: tuple[int, ...], itemsize: int, budget: int = 1 << 20) -> Iterator[slice]:
    """Yield slices of a weight's rows, each of at most `budget` bytes or a single row."""
    step = max(1, budget // (int(np.prod(shape[1:])) * itemsize))
    for first in range(0, shape[0], step):
        yield slice(first, min(first + step, shape[0]))
