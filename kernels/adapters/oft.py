"""OFT: the weight turned by a block-diagonal rotation, on its output or on its input."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from refsd.kernels.adapters.layer import Layer, Linear, row_blocks, without_bias
from refsd.kernels.adapters.rotation import cayley
from refsd.kernels.adapters.strengths import TurnShares, turn_lycoris


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


def weakened(stages, share):
    """Each block between the identity (share 0) and itself (1)."""
    if share == 1:
        return stages
    return tuple(
        s._replace(blocks=share * s.blocks + (1 - share) * np.eye(s.blocks.shape[-1], dtype=s.blocks.dtype))
        for s in stages
    )


class OutputRotation(NamedTuple):
    """
        weight <- gain * (weight^T stages)^T             the rows of the weight are turned; the bias is not

    LyCORIS's diag_oft and boft, kohya's OFT, ComfyUI's and A1111's.

    stages: of O channels
    gain:   [O] or None
    shares: where a strength enters: a function of strengths.py
    """

    stages: tuple[Stage, ...]
    gain: np.ndarray | None = None
    shares: Callable[[float], TurnShares] = turn_lycoris

    def _turned(self, columns, strength):
        """columns: [..., O] -> what is added to them"""
        whole, share = self.shares(strength)
        y = turn(columns, weakened(self.stages, share))
        if self.gain is not None:
            y *= self.gain
        y -= columns
        y *= whole
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
    PEFT knows no strength but 1; here a strength is a share of the way to the turned weight.

    stages: of I (I R S) channels
    gain:   [O] or None
    """

    stages: tuple[Stage, ...]
    gain: np.ndarray | None = None

    def rows(self, weight):
        """What is added to some rows of the weight, but for the gain. weight: [rows, ...] -> the same shape"""
        flat = weight.reshape(len(weight), -1)
        return (turn(flat, transposed(self.stages)) - flat).reshape(weight.shape)

    def delta(self, weight, strength=1.0):
        """The definition. weight: [O, I] or [O, I, R, S] -> the same shape"""
        if self.gain is None:
            return strength * self.rows(weight)
        gain = self.gain.reshape(-1, *(1,) * (weight.ndim - 1))
        return strength * (gain * self.rows(weight) + (gain - 1) * weight)

    def forward(self, x, base, layer: Layer, out, strength=1.0):
        """Add delta's output to `out`. base: the layer's own output, its bias included.

        A linear layer runs once more, on the turned input less the input. A convolution's taps overlap in its
        input: its turned rows are made, 1 MB at a time. (PEFT's OFT turns the patches, then adds the overlaps up:
        its forward is not its merged weight where the filter is larger than 1x1.)
        """
        if isinstance(layer, Linear):
            part = layer.apply(turn(x, self.stages) - x, layer.weight)
        else:
            part = np.empty_like(base)
            for which in row_blocks(layer.weight.shape, x.itemsize):
                part[:, which] = layer.apply(x, self.rows(layer.weight[which]))
        if self.gain is not None:
            more = (self.gain - 1).astype(x.dtype)
            part += layer.channels(more) * (part + without_bias(base, layer))
        part *= strength
        out += part


def diagonal(q) -> tuple[Stage, ...]:
    """LyCORIS's diag_oft, kohya's OFT: one stage, R by cayley. q: [n, b, b], skew"""
    return (Stage(cayley(q)),)
