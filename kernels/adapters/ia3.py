"""IA3: one learned factor for each channel of the output or of the input."""

from typing import NamedTuple

import numpy as np

from refsd.kernels.adapters.layer import Layer, without_bias


class IA3(NamedTuple):
    """
        on the output:  delta[o, i] = (gain[o] - 1) weight[o, i]
        on the input:   delta[o, i] = (gain[i] - 1) weight[o, i]

    gain:     [O] or [I]; LyCORIS stores gain - 1, PEFT gain
    on_input: True: factors on the input channels; False: on the output channels
    on_bias:  True: the output's factor also multiplies the bias. PEFT: yes; LyCORIS: no, except in its bypass mode

    With a strength s, gain - 1 becomes s (gain - 1).
    Source: Liu et al. 2022, section 3.3; LyCORIS ia3.py; PEFT tuners/ia3/layer.py.
    """

    gain: np.ndarray
    on_input: bool = False
    on_bias: bool = False

    def delta(self, weight, strength=1.0):
        """The definition. weight: [O, I] or [O, I, R, S] -> the same shape"""
        axis = 1 if self.on_input else 0
        more = strength * (self.gain - 1)
        return weight * more.reshape([-1 if i == axis else 1 for i in range(weight.ndim)])

    def bias_delta(self, bias, strength=1.0):
        """Return the difference of the bias, [O]; None if there is none."""
        return bias * (strength * (self.gain - 1)) if self.on_bias and bias is not None else None

    def forward(self, x, base, layer: Layer, out, strength=1.0):
        """Add delta's output to `out`. base: the layer's own output, its bias included.

        On the output this costs one multiplication an element, on the input one more run of the layer.
        """
        more = (strength * (self.gain - 1)).astype(x.dtype)
        if self.on_input:
            out += layer.apply(x * layer.channels(more), layer.weight)
        else:
            out += (base if self.on_bias else without_bias(base, layer)) * layer.channels(more)
