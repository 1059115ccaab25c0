"""How a picture is decoded: whole or in tiles, and which of its edges meet; sd-cli's flags as values."""

import math
import re

import numpy as np

from refsd.models.vae_tiling import Run, Tiling, tiled_sdcpp
from refsd.module import Module
from refsd.numerics.errors import BadInput
from refsd.seams import Seams

_WHOLE, _PART = r"\d{1,9}", r"(?:\d+\.?\d*|\.\d+)"


def read_tiling(size: str | None, relative: str | None, overlap: float) -> Tiling:
    """--vae-tile-size 32x24 (columns, rows) or 32, --vae-relative-tile-size 0.5x2 or 0.5, --vae-tile-overlap.

    Raises BadInput for another text, or an overlap that is no number.
    """
    if not math.isfinite(overlap):
        raise BadInput(f"--vae-tile-overlap {overlap}: expected 0 to 0.5")
    size_x, size_y = _pair("--vae-tile-size", size, _WHOLE, "32 or 32x24")
    relative_x, relative_y = _pair("--vae-relative-tile-size", relative, _PART, "0.5 or 0.5x2")
    return Tiling(int(size_x), int(size_y), overlap, relative_x, relative_y)


def _pair(flag: str, text: str | None, number: str, example: str) -> tuple[float, float]:
    if text is None:
        return 0, 0
    found = re.fullmatch(f"({number})(?:x({number}))?", text, re.ASCII)
    values = [float(value) for value in (found[1], found[2] or found[1])] if found else [math.inf]
    if not all(map(math.isfinite, values)):
        raise BadInput(f"{flag} {text[:60]}: expected a number or two, {example}")
    return values[0], values[1]


def decode_as_asked(
    run: Run, m: Module, z: np.ndarray, factor: int, tiling: Tiling | None, seams: Seams
) -> np.ndarray:
    """A latent's picture, in stable-diffusion.cpp's way.

    run:    the whole decoder, over the weights in m
    z:      [1, Z, H, W]; factor: pixels per latent's
    tiling: None: at once
    seams:  an axis of several tiles wraps between them, one of a single tile inside it
    """
    if tiling is None:
        m.seams = seams
        return run(z)
    height, width = z.shape[2:]
    m.seams, wraps = tiling.seams(seams, height, width)
    return tiled_sdcpp(run, z, tiling.sizes(height, width), tiling.target(), up=factor, wraps=wraps)


def words(tiling: Tiling | None, seams: Seams) -> dict[str, str]:
    """What a PNG says about it."""
    said = {}
    if tiling is not None:
        part = tiling.relative_x > 0 or tiling.relative_y > 0
        size = (tiling.relative_x, tiling.relative_y) if part else (tiling.size_x, tiling.size_y)
        said["VAE tiles"] = f"{size[0]:g}x{size[1]:g} by {tiling.target():g}"
    if seams.x or seams.y:
        said["Circular"] = "x" * seams.x + "y" * seams.y
    return said
