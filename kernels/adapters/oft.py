"""OFT: the weight turned by a block-diagonal rotation, on its output or on its input."""

from typing import NamedTuple

import numpy as np

from refsd.kernels.adapters.layer import Layer, Linear, row_blocks, without_bias
from refsd.kernels.adapters.rotation import cayley, limited, skew


class Stage(NamedTuple):
    """Channels are put in an order, each block of b of them is multiplied as a row vector, and all go back.

        v = x[order];  u[k b : (k + 1) b] = v[k b : (k + 1) b] blocks[k];  y[order] = u

    blocks: [n, b, b], n b the number of channels
    order:  [n b] or None: as they are
    """

    blocks: np.ndarray
    order: np.ndarray | None = None


def turn(x, stages):
    """Each stage in turn, on the last axis. x: [..., D] -> the same. Cost: b products an element and a stage."""
    for blocks, order in stages:
        n, b, _ = blocks.shape
        v = (x if order is None else x[..., order]).reshape(-1, n, b)
        u = np.matmul(v.swapaxes(0, 1), blocks).swapaxes(0, 1).reshape(x.shape)
        if order is None:
            x = u
        else:
            x = np.empty_like(u)
            x[..., order] = u
    return x


def transposed(stages):
    """The stages of the transposed matrix."""
    return tuple(Stage(np.swapaxes(s.blocks, -1, -2), s.order) for s in reversed(stages))


def weakened(stages, strength):
    """Each block between the identity (strength 0) and itself (1), as LyCORIS and ComfyUI do it."""
    if strength == 1:
        return stages
    return tuple(
        s._replace(blocks=strength * s.blocks + (1 - strength) * np.eye(s.blocks.shape[-1], dtype=s.blocks.dtype))
        for s in stages
    )


class OutputRotation(NamedTuple):
    """
        weight <- gain * (weight^T stages)^T             the rows of the weight are turned; the bias is not

    LyCORIS's diag_oft and boft, kohya's OFT, ComfyUI's.

    stages: of O channels
    gain:   [O] or None; with a strength s, 1 + s (gain - 1)
    """

    stages: tuple[Stage, ...]
    gain: np.ndarray | None = None

    def _turned(self, columns, strength):
        """columns: [..., O] -> what is added to them"""
        y = turn(columns, weakened(self.stages, strength))
        if self.gain is not None:
            y *= 1 + strength * (self.gain - 1)
        y -= columns
        return y

    def delta(self, weight, strength=1.0):
        """The definition. weight: [O, I] or [O, I, R, S] -> the same shape"""
        return np.moveaxis(self._turned(np.moveaxis(weight, 0, -1), strength), -1, 0)

    def forward(self, x, base, layer: Layer, out, strength=1.0):
        """Add delta's output to `out`: what turns the rows turns the output. base: the layer's own, with bias.

        Cost: b products an output and a stage. x is not read.
        """
        own = np.moveaxis(without_bias(base, layer), layer.axis, -1)
        out += np.moveaxis(self._turned(own, strength), -1, layer.axis)


class InputRotation(NamedTuple):
    """
        weight <- gain * (weight stages^T)        the columns are turned: weight (x stages) instead of weight x

    PEFT's OFT and BOFT. A convolution's columns are its I R S taps; one of 1x1 and a linear layer turn their input.

    stages: of I (I R S) channels
    gain:   [O] or None; with a strength s, 1 + s (gain - 1)
    """

    stages: tuple[Stage, ...]
    gain: np.ndarray | None = None

    def rows(self, weight, strength=1.0):
        """What is added to some rows of the weight, but for the gain. weight: [rows, ...] -> the same shape"""
        flat = weight.reshape(len(weight), -1)
        return (turn(flat, transposed(weakened(self.stages, strength))) - flat).reshape(weight.shape)

    def delta(self, weight, strength=1.0):
        """The definition. weight: [O, I] or [O, I, R, S] -> the same shape"""
        if self.gain is None:
            return self.rows(weight, strength)
        gain = (1 + strength * (self.gain - 1)).reshape(-1, *(1,) * (weight.ndim - 1))
        return gain * self.rows(weight, strength) + (gain - 1) * weight

    def forward(self, x, base, layer: Layer, out, strength=1.0):
        """Add delta's output to `out`. base: the layer's own output, its bias included.

        A linear layer runs once more, on the turned input less the input. A convolution's taps overlap in its
        input: its turned rows are made, 1 MB at a time. (PEFT's OFT turns the patches, then adds the overlaps up:
        its forward is not its merged weight where the filter is larger than 1x1.)
        """
        if isinstance(layer, Linear):
            part = layer.apply(turn(x, weakened(self.stages, strength)) - x, layer.weight)
        else:
            part = np.empty_like(base)
            for which in row_blocks(layer.weight.shape, x.itemsize):
                part[:, which] = layer.apply(x, self.rows(layer.weight[which], strength))
        if self.gain is not None:
            more = (strength * (self.gain - 1)).astype(x.dtype)
            part += layer.channels(more) * (part + without_bias(base, layer))
        out += part


def diagonal(blocks, limit=0.0) -> tuple[Stage, ...]:
    """LyCORIS's diag_oft, kohya's OFT: one stage, R by cayley. blocks: [n, b, b], limit: see `limited`"""
    return (Stage(cayley(limited(skew(blocks), limit))),)
