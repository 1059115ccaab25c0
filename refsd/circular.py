"""Pictures that wrap around: convolutions pad each edge with the pixels of the opposite edge."""

from typing import NamedTuple

import numpy as np

Sides = tuple[int, int, int, int]


class CircularAxes(NamedTuple):
    """The axes on which a picture wraps around.

    x:         True if the left edge continues at the right edge
    y:         True if the top edge continues at the bottom edge
    one_sided: True if padding on one side only wraps too, as in stable-diffusion.cpp; False: it stays zero, as with
               torch's Conv2d and padding_mode="circular" (A1111, Easy Diffusion), which acts after that padding

    Only the autoencoder's encoder pads on one side, before its convolutions of stride 2. Operations without padding
    do not change: attention, upsampling, a transformer's positions.
    """

    x: bool = False
    y: bool = False
    one_sided: bool = True

    def wrap(self, x: np.ndarray, padding: Sides) -> tuple[np.ndarray, Sides]:
        """Pad a picture with the pixels of the opposite edges, on the axes that wrap.

        x:       [..., H, W]
        padding: (top, bottom, left, right)
        -> x:    [..., top + H + bottom, left + W + right] if both axes wrap
           padding: the padding that remains, to be filled with zeros
        Source: stable-diffusion.cpp ggml_extend.hpp, ggml_ext_pad_ext; torch.nn.functional.pad, "circular".
        """
        top, bottom, left, right = padding
        if self.y and self._wraps(top, bottom):
            x, top, bottom = _around(x, -2, top, bottom), 0, 0
        if self.x and self._wraps(left, right):
            x, left, right = _around(x, -1, left, right), 0, 0
        return x, (top, bottom, left, right)

    def _wraps(self, before: int, after: int) -> bool:
        return before + after > 0 and (self.one_sided or before == after)


def _around(x: np.ndarray, axis: int, before: int, after: int) -> np.ndarray:
    size = x.shape[axis]
    return x.take(np.arange(-before, size + after) % size, axis)
