"""OFT: rotate the weight by a block-diagonal matrix, on its output or on its input."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from refsd.kernels.adapters.layer import Layer, Linear, row_blocks, without_bias
from refsd.kernels.adapters.rotation import cayley
from refsd.kernels.adapters.strengths import TurnShares, turn_lycoris


class Stage(NamedTuple):
    """Permute channels, multiply each block of b channels (a row vector) with a matrix, and undo the permutation.

        v = x[order];  u[k b : (k + 1) b] = v[k b : (k + 1) b] blocks[k];  y[order] = u

    blocks: [n, b, b], where n b is the number of channels
    order:  [n b], the permutation; None: no permutation
    """

    blocks: np.ndarray
    order: np.ndarray | None = None


def turn(x, stages):
    """Apply the stages in turn to the last axis. x: [..., D] -> [..., D]. Cost: b products an element and stage."""
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
    """Return the stages of the transposed matrix."""
    return tuple(Stage(np.swapaxes(s.blocks, -1, -2), s.order) for s in reversed(stages))


def weakened(stages, share):
    """Interpolate each block between the identity (share 0) and itself (share 1)."""
    if share == 1:
        return stages
    return tuple(
        s._replace(blocks=share * s.blocks + (1 - share) * np.eye(s.blocks.shape[-1], dtype=s.blocks.dtype))
        for s in stages
    )


class OutputRotation(NamedTuple):
    """
        weight <- gain * (weight^T stages)^T             rotates the output channels; the bias is not rotated

    Used by LyCORIS's diag_oft and boft, and by the OFT of kohya, ComfyUI and A1111.

    stages: of O channels
    gain:   [O] or None
    shares: how a strength enters: a function of strengths.py
    """

    stages: tuple[Stage, ...]
    gain: np.ndarray | None = None
    shares: Callable[[float], TurnShares] = turn_lycoris

    def _turned(self, columns, strength):
        """Compute the difference that the rotation makes. columns: [..., O] -> [..., O]"""
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
        """Add delta's output to `out` by rotating the output itself. base: the layer's own output, with its bias.

        Cost: b products an output and a stage. x is not read.
        """
        own = np.moveaxis(without_bias(base, layer), layer.axis, -1)
        out += np.moveaxis(self._turned(own, strength), -1, layer.axis)


class InputRotation(NamedTuple):
    """
        weight <- gain * (weight stages^T)        rotates the columns: weight (x stages) instead of weight x

    Used by PEFT's OFT and BOFT. A convolution's columns are its I R S taps; a 1x1 convolution and a linear layer
    rotate their input. PEFT has only strength 1; here a strength interpolates to the rotated weight.

    stages: of I (I R S) channels
    gain:   [O] or None
    """

    stages: tuple[Stage, ...]
    gain: np.ndarray | None = None

    def rows(self, weight):
        """Compute the difference of some rows of the weight, without the gain. weight: [rows, ...] -> same shape"""
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

        A linear layer runs once more, on the rotated input minus the input. A convolution's taps overlap in its
        input, so the rotated rows of its weight are computed, 1 MB at a time. (PEFT's OFT rotates the patches and
        adds up their overlaps: for filters larger than 1x1 its forward differs from its merged weight.)
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
    """Return the single stage of LyCORIS's diag_oft and kohya's OFT, with R from cayley. q: [n, b, b], skew"""
    return (Stage(cayley(q)),)
