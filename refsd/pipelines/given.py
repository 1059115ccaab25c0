"""Pictures that a picture is made from: to begin with, a mask, a hint, one to edit; and the channels behind x.

No picture is resized: one that does not fit is refused, since every engine resizes in its own way.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from refsd.golden.file_kinds import START, kind
from refsd.golden.input_file import open_input
from refsd.numerics.errors import BadInput
from refsd.pipelines.autoencoders import Autoencoder, Draw

MOST = 4096  # pixels of a side


class Given(NamedTuple):
    """
    init, control, reference: [1, 3, H, W], 0..1
    mask:                     [1, 1, H, W], 1 where something new is drawn
    """

    init: np.ndarray | None = None
    mask: np.ndarray | None = None
    control: np.ndarray | None = None
    reference: np.ndarray | None = None


class ExtraChannels(NamedTuple):
    """Channels behind x in the network's input, with the prompt and without: [1, C, h, w] each."""

    cond: np.ndarray
    uncond: np.ndarray


def read_picture(flag: str, path: Path) -> np.ndarray:
    """[1, 3, H, W], 0..1 in steps of 1/255; or of a --mask [1, 1, H, W], 0 and 1.

    Raises BadInput: no picture, or larger than MOST.
    """
    from PIL import Image

    colours = flag != "--mask"
    try:
        file = open_input(path, "a picture")
    except BadInput as error:
        raise BadInput(f"{flag} {error}") from None
    found = kind(file.read(START))
    try:
        with file, Image.open(file) as image:
            if max(image.size) > MOST:
                raise BadInput(f"{flag} {path}: {image.width}x{image.height} pixels; at most {MOST} a side")
            pixels = np.asarray(image.convert("RGB" if colours else "L"))
    except BadInput:
        raise
    except Exception as error:  # Pillow has one for each format
        reason = getattr(error, "strerror", None) or (str(error).splitlines() or [type(error).__name__])[0][:120]
        found = reason if not found or found.endswith(" picture") else found
        raise BadInput(f"{flag} {path}: no picture that can be read: {found}") from None
    values = pixels.astype(np.float64) / 255
    values = values.transpose(2, 0, 1) if colours else np.floor(values + 0.5)[None]
    return values[None]


def check_size(flag: str, picture: np.ndarray, width: int, height: int) -> None:
    """Raises BadInput unless it is as large as what is drawn."""
    found = picture.shape[3], picture.shape[2]
    if found != (width, height):
        raise BadInput(
            f"{flag}: the picture has {found[0]}x{found[1]} pixels and {width}x{height} are drawn: "
            "resize it, or give another -W and -H"
        )


def signed(picture: np.ndarray) -> np.ndarray:
    """0..1 -> -1..1"""
    return picture * 2 - 1


def in_latents(mask: np.ndarray, pixels: int, like: str) -> np.ndarray:
    """The mask of the latents: a square's largest value; in diffusers that of its first pixel. [1, 1, h, w]

    Source: stable-diffusion.cpp prepare_image_generation_latents; diffusers prepare_mask_latents, interpolate.
    """
    _, _, H, W = mask.shape
    squares = mask.reshape(1, 1, H // pixels, pixels, W // pixels, pixels)
    return squares.max(axis=(3, 5)) if like == "sdcpp" else squares[:, :, :, 0, :, 0]


def widened(mask: np.ndarray) -> np.ndarray:
    """The largest of each 3x3 square. Source: stable-diffusion.cpp, max_pool_2d of an inpainting model's mask."""
    h, w = mask.shape[2:]
    around = np.pad(mask, ((0, 0), (0, 0), (1, 1), (1, 1)))
    return np.max([around[:, :, i : i + h, j : j + w] for i in range(3) for j in range(3)], axis=0)


def _masked(given: Given, what: str) -> tuple[np.ndarray, np.ndarray]:
    """The first picture, grey where something new is drawn, -1..1; and the mask."""
    if given.init is None or given.mask is None:
        raise BadInput(f"these weights are for {what}: give --init-img and --mask")
    return signed(given.init) * (1 - given.mask), given.mask


def _inpaint(given: Given, vae: Autoencoder, like: str, draw: Draw | None) -> ExtraChannels:
    """The mask, then the masked picture's latent; without the prompt stable-diffusion.cpp has zeros for it."""
    picture, mask = _masked(given, "inpainting")
    latent = vae.encode(picture, draw)
    mask = in_latents(mask, vae.pixels, like).astype(latent.dtype)
    cond = np.concatenate([mask, latent], axis=1)
    zeros = np.concatenate([mask, np.zeros_like(latent)], axis=1)
    return ExtraChannels(cond, zeros if like == "sdcpp" else cond)


def _fill(given: Given, vae: Autoencoder, like: str, draw: Draw | None) -> ExtraChannels:
    """The masked picture's latent, then the mask, each latent's pixels as channels.

    Source: black-forest-labs/flux sampling.py, prepare_fill; diffusers FluxFillPipeline.prepare_mask_latents.
    """
    picture, mask = _masked(given, "filling in")
    latent = vae.encode(picture, draw)
    _, _, h, w = latent.shape
    P = vae.pixels
    mask = mask.reshape(1, h, P, w, P).transpose(0, 2, 4, 1, 3).reshape(1, P * P, h, w).astype(latent.dtype)
    cond = np.concatenate([latent, mask], axis=1)
    zeros = np.concatenate([np.zeros_like(latent), mask], axis=1)
    return ExtraChannels(cond, zeros if like == "sdcpp" else cond)


def _edit(given: Given, vae: Autoencoder, like: str, draw: Draw | None) -> ExtraChannels:
    """The latent of the picture to edit, its mean, as the autoencoder gives it; zeros without.

    Source: timothybrooks/instruct-pix2pix edit_cli.py; diffusers prepare_image_latents.
    """
    if given.reference is None:
        raise BadInput("these weights edit a picture: give it with --ref-image")
    latent = vae.encode(signed(given.reference), scaled=False)
    return ExtraChannels(latent, np.zeros_like(latent))


def _control(given: Given, vae: Autoencoder, like: str, draw: Draw | None) -> ExtraChannels:
    """The latent of edges or depths. Source: black-forest-labs/flux sampling.py, prepare_control."""
    if given.control is None:
        raise BadInput("these weights follow a picture of edges or depths: give it with --control-image")
    latent = vae.encode(signed(given.control), draw)
    return ExtraChannels(latent, np.zeros_like(latent) if like == "sdcpp" else latent)


# Extra channels whose posterior diffusers draws before the noise.
BEFORE_NOISE = ("control",)
# Variant.extra_channels -> the function that makes them
EXTRA_CHANNELS: dict[str, Callable[[Given, Autoencoder, str, Draw | None], ExtraChannels]] = {
    "inpaint": _inpaint,
    "fill": _fill,
    "edit": _edit,
    "control": _control,
}
