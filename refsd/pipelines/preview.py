"""Previews of a picture while it is sampled: a file, and on a terminal with true colour the picture itself."""

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.color import Color
from rich.console import Console, ConsoleOptions
from rich.segment import Segment
from rich.style import Style

from refsd.models.vae_flux2 import unpack
from refsd.numerics.errors import BadInput
from refsd.pipelines.options import check_between, default
from refsd.pipelines.pipeline import Pipeline
from refsd.pipelines.png import to_bytes

METHODS = "none", "proj", "tae", "vae"
_COLUMNS = 64  # of a preview on the terminal, at most


class PreviewSettings(NamedTuple):
    """Settings of previews, with sd-cli's names and defaults.

    method:   one of METHODS: none; a linear projection of the latent; a tiny or the whole autoencoder
    path:     PNG file, replaced by each preview
    interval: steps from one preview to the next
    noisy:    True to show the latent with its noise instead of what the network takes it for
    """

    method: str = default("PreviewSettings.method")
    path: Path = default("PreviewSettings.path")
    interval: int = default("PreviewSettings.interval")
    noisy: bool = default("PreviewSettings.noisy")

    def check(self) -> None:
        """Raise BadInput for an unknown method or an interval below 1."""
        if self.method not in METHODS:
            raise BadInput(f"--preview {self.method}: expected one of {', '.join(METHODS)}")
        check_between(self)

    def check_use(self, pipe: Pipeline) -> None:
        """Raise BadInput for a method that this pipeline lacks."""
        form = pipe.variant.latent_format
        if self.method == "proj" and not pipe.variant.pixel_space and form is None:
            raise BadInput(
                f"--preview proj: no projection of {pipe.variant.title}'s latents is known; take vae, "
                "or tae with --taesd"
            )
        if self.method == "tae" and not pipe.autoencoder.tiny:
            raise BadInput("--preview tae: it needs a tiny autoencoder; give it with --taesd")

    def due(self, step: int) -> bool:
        """Return True if a preview is made after this step, counted from 0."""
        return self.method != "none" and step % self.interval == 0


@functools.cache
def _projections() -> dict[str, dict[str, list]]:
    return json.loads(Path(__file__).with_name("latent_rgb.json").read_text(encoding="utf-8"))


def project(latent: np.ndarray, form: str) -> np.ndarray:
    """Project latents to colours: rgb = factors^T latent + bias.

    latent: [1, C, h, w], in the denoiser's scale; FLUX.2's packed, which gives two pixels a side
    form:   key of latent_rgb.json
    -> [1, 3, h, w], about -1..1

    Source: stable-diffusion.cpp latent-preview.h, preview_latent_video.
    """
    table = _projections()[form]
    factors = np.array(table["factors"])
    if latent.shape[1] == 4 * len(factors):
        latent = unpack(latent)
    rgb = np.tensordot(factors.T, latent[0].astype(np.float64), axes=1)
    return (rgb + np.array(table["bias"])[:, None, None])[None]


def preview(pipe: Pipeline, latent: np.ndarray, settings: PreviewSettings) -> np.ndarray:
    """Draw a preview of latents [1, C, h, w] -> [H, W, 3] uint8; of layers, the whole picture."""
    latent = latent if latent.ndim == 4 else latent[:, 0]
    form = pipe.variant.latent_format
    if settings.method == "proj" and not pipe.variant.pixel_space and form is not None:
        return to_bytes(project(latent, form))
    return to_bytes(pipe.autoencoder.decode(latent))


class TerminalPicture:
    """A picture as a Rich renderable: a character for two pixels, one above the other, in 24-bit colours.

    pixels: [H, W, 3] uint8; shown at most 64 columns wide, each pixel the mean of those that it stands for
    """

    def __init__(self, pixels: np.ndarray, text: str = ""):
        self.pixels, self.text = pixels, text

    @staticmethod
    def fits(console: Console) -> bool:
        """Return True if the console is a terminal that shows 24-bit colours."""
        return console.is_terminal and console.color_system == "truecolor"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        rows = max(options.max_height - 3, 1) * 2
        pixels = _shrunk(self.pixels, min(_COLUMNS, options.max_width), rows)
        if len(pixels) % 2:
            pixels = np.concatenate([pixels, np.zeros_like(pixels[:1])])
        for upper, lower in zip(pixels[::2], pixels[1::2], strict=True):
            for above, below in zip(upper.tolist(), lower.tolist(), strict=True):
                yield Segment("\u2580", Style(color=Color.from_rgb(*above), bgcolor=Color.from_rgb(*below)))
            yield Segment.line()
        yield Segment(self.text)
        yield Segment.line()


def _shrunk(pixels: np.ndarray, columns: int, rows: int) -> np.ndarray:
    """Shrink [H, W, 3] by a whole factor to at most columns x rows; what does not fill a last square is cut."""
    H, W = pixels.shape[:2]
    factor = max(-(-W // columns), -(-H // rows), 1)
    h, w = H // factor, W // factor
    squares = pixels[: h * factor, : w * factor].reshape(h, factor, w, factor, 3)
    return np.rint(squares.mean(axis=(1, 3))).astype(np.uint8)
