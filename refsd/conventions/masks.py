"""Cards of masks: how engines reduce a mask to latents, and where they put the given picture back around it."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np


def largest_of_square(mask: np.ndarray, pixels: int) -> np.ndarray:
    """Reduce a pixel mask to latents: 1 if any pixel of a square is 1. [N, 1, H, W] -> [N, 1, H/pixels, W/pixels]

    Source: stable-diffusion.cpp prepare_image_generation_latents.
    """
    return _squares(mask, pixels).max(axis=(3, 5))


def first_of_square(mask: np.ndarray, pixels: int) -> np.ndarray:
    """Reduce a pixel mask to latents: take the first pixel of each square.

    Source: diffusers prepare_mask_latents, interpolate.
    """
    return _squares(mask, pixels)[:, :, :, 0, :, 0]


def middle_of_square(mask: np.ndarray, pixels: int) -> np.ndarray:
    """Return the mean of each square's middle 2 x 2 pixels: bilinear at an even factor, without antialiasing."""
    middle = slice(pixels // 2 - 1, pixels // 2 + 1)
    return _squares(mask, pixels)[:, :, :, middle, :, middle].mean(axis=(3, 5), dtype=mask.dtype)


def binary(mask: np.ndarray) -> np.ndarray:
    """Round grey values to 0 and 1."""
    return (mask >= 0.5).astype(mask.dtype)


def grey(mask: np.ndarray) -> np.ndarray:
    """Keep grey values."""
    return mask


class MaskCard(NamedTuple):
    """How an engine inpaints. Around the mask means where the mask is 0.

    grey:   mask of pixels -> mask of pixels: rounds grey values to 0 and 1, or keeps them
    pooled: mask of pixels, pixels per latent pixel -> mask of latents
    before: put the noised given picture around the mask in the network's input
    at_x0:  put the given picture around the mask in the denoised one
    after:  put the noised given picture around the mask in the step's result
    source: where the engine's code is
    """

    grey: Callable[[np.ndarray], np.ndarray]
    pooled: Callable[[np.ndarray, int], np.ndarray]
    before: bool
    at_x0: bool
    after: bool
    source: str


def _squares(mask: np.ndarray, pixels: int) -> np.ndarray:
    N, C, H, W = mask.shape
    return mask.reshape(N, C, H // pixels, pixels, W // pixels, pixels)
