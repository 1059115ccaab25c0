"""The layer that an adapter stands on: its weight, its bias, and how a weight is applied."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from refsd.kernels.conv2d_im2col import conv2d_im2col
from refsd.kernels.linear import linear


def as_it_is(x):
    return x


def convolve(x, weight, stride, padding):
    """conv2d_im2col without a bias."""
    return conv2d_im2col(x, weight, np.zeros(len(weight), x.dtype), stride, padding)


class Linear(NamedTuple):
    """
    weight:     [O, I]
    bias:       [O] or None
    activation: what the engine makes of an input before it multiplies: a rounding, or nothing
    settled:    what becomes of a result that it keeps: a rounding, or nothing
    """

    weight: np.ndarray
    bias: np.ndarray | None = None
    activation: Callable[[np.ndarray], np.ndarray] = as_it_is
    settled: Callable[[np.ndarray], np.ndarray] = as_it_is

    axis = -1  # of the channels, in x and in the output

    def apply(self, x, weight):
        """x [..., I'], any weight [O', I'] -> [..., O'], without a bias."""
        return linear(self.activation(x), weight)

    def channels(self, values):
        """[O] as it is broadcast over an output."""
        return values


class Conv2d(NamedTuple):
    """
    weight:   [O, I, R, S]
    bias:     [O] or None
    stride:   in pixels
    padding:  (top, bottom, left, right), in pixels
    dilation: distance of a filter's taps, in pixels
    product:  (x [N, I, H, W], weight [O, I, R, S], stride, padding) -> [N, O, P, Q], of what the engine makes of x
    settled:  what becomes of a result that it keeps: a rounding, or nothing
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
        """What this layer gives with another weight [O', I', R, S] of its geometry, without a bias."""
        return self.product(x, dilated(weight, self.dilation), self.stride, self.padding)

    def pointwise(self, x, weight):
        """x [N, C, H, W], weight [O, C] -> [N, O, H, W]: a 1x1 convolution."""
        return self.product(x, weight.reshape(*weight.shape[:2], 1, 1), 1, (0, 0, 0, 0))

    def channels(self, values):
        """[O] as it is broadcast over an output."""
        return values[:, None, None]


Layer = Linear | Conv2d


def dilated(weight, dilation):
    """The taps `dilation` pixels apart, zeros between them: the filter that a dilated convolution slides.

    weight: [O, I, R, S] -> [O, I, (R - 1) dilation + 1, (S - 1) dilation + 1]
    """
    if dilation == 1:
        return weight
    O, I, R, S = weight.shape
    wide = np.zeros((O, I, (R - 1) * dilation + 1, (S - 1) * dilation + 1), weight.dtype)
    wide[:, :, ::dilation, ::dilation] = weight
    return wide


def without_bias(base, layer: Layer):
    """The output of the layer's weight alone. base: [..., O] or [N, O, P, Q]"""
    return base if layer.bias is None else base - layer.channels(layer.bias)


def row_blocks(shape: tuple[int, ...], itemsize: int, budget: int = 1 << 20) -> Iterator[slice]:
    """Blocks of a weight's rows that take at most `budget` bytes, or one row."""
    step = max(1, budget // (int(np.prod(shape[1:])) * itemsize))
    for first in range(0, shape[0], step):
        yield slice(first, min(first + step, shape[0]))
