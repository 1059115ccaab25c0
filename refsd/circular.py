"""Pictures whose edges meet: each convolution sees, beyond one edge, what stands at the opposite one."""

from typing import NamedTuple

import numpy as np

Sides = tuple[int, int, int, int]


class CircularAxes(NamedTuple):
    """
    x:         the left and the right edge meet
    y:         the top and the bottom edge meet
    one_sided: padding on one side only wraps too, as in stable-diffusion.cpp; False: it stays zero, as where
               torch's Conv2d is given padding_mode="circular" (A1111, Easy Diffusion), which comes after it

    Only the autoencoder's encoder pads one side, before its convolutions of stride 2. What pads nothing
    is not changed: attention, upsampling, a transformer's positions.
    """

    x: bool = False
    y: bool = False
    one_sided: bool = True

    def wrap(self, x: np.ndarray, padding: Sides) -> tuple[np.ndarray, Sides]:
        """Lay what stands opposite around a picture, where its edges meet.

        x:       [N, C, H, W]
        padding: (top, bottom, left, right)
        -> x:    [N, C, top + H + bottom, left + W + right], where both axes wrap
           padding: what is left to fill with zeros
        Source: stable-diffusion.cpp ggml_extend.hpp, ggml_ext_pad_ext; torch.nn.functional.pad, "circular".
        """
        top, bottom, left, right = padding
        if self.y and self._wraps(top, bottom):
            x, top, bottom = _around(x, 2, top, bottom), 0, 0
        if self.x and self._wraps(left, right):
            x, left, right = _around(x, 3, left, right), 0, 0
        return x, (top, bottom, left, right)

    def _wraps(self, before: int, after: int) -> bool:
        return before + after > 0 and (self.one_sided or before == after)


def _around(x: np.ndarray, axis: int, before: int, after: int) -> np.ndarray:
    size = x.shape[axis]
    return x.take(np.arange(-before, size + after) % size, axis)
