"""Full: the file has the full differences of a weight and a bias, also for norms."""

from typing import NamedTuple

import numpy as np

from refsd.kernels.adapters.layer import Layer


class Full(NamedTuple):
    """
        delta = diff;  bias <- bias + diff_b

    diff:   [O, I] or [O, I, R, S], for a norm [C]; None: only the bias changes
    diff_b: [O] or None

    Source: LyCORIS full.py ("diff", "diff_b") and norms.py ("w_norm", "b_norm").
    """

    diff: np.ndarray | None
    diff_b: np.ndarray | None = None

    def delta(self, weight, strength=1.0):
        """weight: any shape -> the same shape"""
        if self.diff is None:
            return np.zeros_like(weight)
        return strength * self.diff.reshape(weight.shape)

    def bias_delta(self, bias, strength=1.0):
        """Return the difference of the bias, [O]; None if there is none."""
        return None if self.diff_b is None else strength * self.diff_b

    def forward(self, x, base, layer: Layer, out, strength=1.0):
        """Add the differences' output to `out`. base is not read.

        The file holds the full delta, so there are no smaller factors to compute with.
        """
        if self.diff is not None:
            part = layer.apply(x, self.diff.reshape(layer.weight.shape))
            part *= strength
            out += part
        if self.diff_b is not None:
            out += layer.channels(strength * self.diff_b)
