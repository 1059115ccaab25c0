"""What sampling begins with: noise, and the latents of pictures that are given."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from refsd.numerics.errors import BadInput
from refsd.pipelines import given as pictures
from refsd.pipelines.given import ExtraChannels, Given
from refsd.pipelines.pipeline import Pipeline, filled, latent_shape
from refsd.pipelines.settings import Settings
from refsd.samplers.noise import RNGS, Noise

NOTHING = Given()


class Start(NamedTuple):
    """
    noise:  [1, C, h, w], standard normals
    latent: of the picture to begin with; None: there is none
    mask:   [1, 1, h, w], 1 where something new is drawn; None: everywhere
    extra:  channels behind x in the network's input; None: there are none
    constants: the network's other pictures, by argument
    rng:    also draws the noise between the steps
    """

    noise: np.ndarray
    rng: Noise
    latent: np.ndarray | None = None
    mask: np.ndarray | None = None
    extra: ExtraChannels | None = None
    constants: Mapping[str, np.ndarray] = {}


def start(
    pipe: Pipeline, settings: Settings, seed: int, given: Given = NOTHING, first_seed: int | None = None
) -> Start:
    """What sampling begins with.

    first_seed: of the batch: stable-diffusion.cpp draws the posteriors of all from its stream
    Raises BadInput for a picture that is missing, of no use, or of another size than what is drawn.
    """
    settings = filled(pipe, settings)
    check_given(pipe, settings, given)
    rng = RNGS[settings.rng or ""](seed)
    vae, like, kind = pipe.autoencoder, settings.like, pipe.variant.extra_channels
    drawer = rng if like == "diffusers" else RNGS[settings.rng or ""](seed if first_seed is None else first_seed)
    # diffusers' inpainting pipeline does not look at the picture where all of the schedule is run.
    fresh = like == "diffusers" and kind == "inpaint" and settings.strength == 1
    latent = None
    if given.init is not None and not fresh:
        latent = vae.encode(pictures.signed(given.init), drawer.randn)
    extra = None
    if kind in pictures.BEFORE_NOISE:
        extra = pictures.EXTRA_CHANNELS[kind](given, vae, like, drawer.randn)
    noise = rng.randn(latent_shape(pipe, settings))
    if kind and extra is None:
        extra = pictures.EXTRA_CHANNELS[kind](given, vae, like, drawer.randn)
    constants = {}
    if given.control is not None and kind != "control":
        constants["hint"] = given.control
    if given.reference is not None and kind != "edit":
        draw = None if like == "diffusers" else drawer.randn
        constants["reference"] = vae.encode(pictures.signed(given.reference), draw)
    mask = None
    if given.mask is not None and not (like == "diffusers" and kind):
        mask = pictures.in_latents(given.mask, vae.pixels, like)
        mask = pictures.widened(mask) if kind in ("inpaint", "fill") else mask
    return Start(noise, rng, latent, mask, extra, constants)


def check_given(pipe: Pipeline, settings: Settings, given: Given) -> None:
    kind, arguments = pipe.variant.extra_channels, pipe.denoiser.arguments
    for flag, picture in (("--init-img", given.init), ("--mask", given.mask), ("--control-image", given.control)):
        if picture is not None:
            pictures.check_size(flag, picture, settings.width, settings.height)
    if given.mask is not None and given.init is None:
        raise BadInput("--mask: it says what of --init-img is drawn anew: give that too")
    hints = "hint" in arguments and pipe.denoiser.fits.get("hint") is None
    if given.control is not None and kind != "control" and not hints:
        raise BadInput(f"--control-image: {pipe.variant.title} has no use for it, or lacks its --control-net")
    if given.reference is not None:
        multiple = pipe.autoencoder.pixels * pipe.denoiser.patch
        if kind == "edit":
            pictures.check_size("--ref-image", given.reference, settings.width, settings.height)
        elif "reference" not in arguments or "reference" in pipe.denoiser.fits:
            raise BadInput(f"--ref-image: {pipe.variant.title} edits no picture; leave it out")
        elif any(side % multiple for side in given.reference.shape[2:]):
            raise BadInput(f"--ref-image: its sides are no multiples of {multiple}: cut it")
