"""A checkpoint as what draws: its parts, opened, and the settings as the family fills them in."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from refsd.families import VARIANTS
from refsd.families.family import Condition, Variant
from refsd.module import Kept
from refsd.networks import DENOISERS
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.pipelines import sampling
from refsd.pipelines.autoencoders import KINDS, PIXELS, Autoencoder, open_autoencoder
from refsd.pipelines.part import Loras, Part, check_parts, open_part
from refsd.pipelines.prediction import prediction_of
from refsd.pipelines.prompts import Tokenizers
from refsd.pipelines.settings import Settings
from refsd.weights import Checkpoint


class Pipeline(NamedTuple):
    variant: Variant
    encoders: Mapping[str, Part]
    denoiser: Part
    autoencoder: Autoencoder
    tokenizers: Tokenizers
    checkpoint: Checkpoint

    @property
    def dtype(self) -> np.dtype:
        """In which latents are kept and sampled: the numerics' compute dtype."""
        return self.denoiser.dtype


class Conditioning(NamedTuple):
    """Batches of one; uncond is None where nothing asks for it."""

    cond: Condition
    uncond: Condition | None


def open_pipeline(
    checkpoint: Checkpoint,
    tokenizers: Tokenizers,
    arithmetic: Arithmetic,
    budget: int = 0,
    loras: Loras = (),
) -> Pipeline:
    """
    budget: bytes of expanded weights of the denoiser to keep between steps; encoders keep none
    loras:  adapter files and their strengths, for the denoiser and the text encoders

    Raises BadInput where a component is missing, or the model draws no pictures from a prompt.
    """
    family = checkpoint.family
    assert family is not None
    if family.name == "parts":
        check_parts(checkpoint, [DENOISERS])
    variant = VARIANTS[family.name]
    if not variant.draws:
        raise BadInput(
            f"{checkpoint.path}: {family.title} ({family.why}); txt2img does not draw with it: "
            "run its components with refsd forward"
        )
    needed = [(name,) for name, encoder in variant.encoders.items() if not encoder.optional]
    check_parts(checkpoint, needed if variant.pixel_space else [*needed, KINDS])
    name = next(name for name in DENOISERS if name in checkpoint.components)
    network = open_part(checkpoint, name, arithmetic, loras, Kept(budget))
    there = [name for name in variant.encoders if name in checkpoint.components]
    encoders = {name: open_part(checkpoint, name, arithmetic, loras) for name in there}
    vae = PIXELS if variant.pixel_space else open_autoencoder(checkpoint, arithmetic, channels(network))
    return Pipeline(variant, encoders, network, vae, tokenizers, checkpoint)


def channels(network: Part) -> int:
    """Of the latents: those that come out."""
    fits = network.fits
    return fits.get("K", fits["C"]).n


# stable-diffusion.cpp's UNets take latents of such multiples, however often they halve them.
_SDCPP_UNET = 8


def size_multiple(pipe: Pipeline, like: str) -> int:
    """What width and height must be multiples of, for an engine.

    diffusers' UNets take any latent. stable-diffusion.cpp's take multiples of 8; its transformers take any latent
    and fill the last patches with zeros, but not Radiance's.

    Source: stable-diffusion.cpp get_diffusion_model_down_factor; diffusers check_inputs of each pipeline.
    """
    pixels = pipe.autoencoder.pixels
    if pipe.variant.flow is None:
        return pixels * (_SDCPP_UNET if like == "sdcpp" else 1)
    return pixels * (1 if like == "sdcpp" and not pipe.variant.pixel_space else pipe.denoiser.patch)


def drawn_size(pipe: Pipeline, settings: Settings) -> Settings:
    """The settings with the size that the engine draws where its multiples are not met.

    stable-diffusion.cpp goes up to the next multiple; diffusers goes down with FLUX and Chroma, and refuses others.
    Raises BadInput for a size that the engine refuses, in one line with sizes that it takes.
    """
    multiple = size_multiple(pipe, settings.like)
    sides = settings.width, settings.height
    up = tuple(-(-side // multiple) * multiple for side in sides)
    down = tuple(side // multiple * multiple for side in sides)
    if sides == up or settings.like == "sdcpp":
        return settings._replace(width=up[0], height=up[1])
    if not pipe.variant.rounds_size_down or 0 in down:
        raise BadInput(
            f"{sides[0]}x{sides[1]}: diffusers draws {pipe.variant.title} in multiples of {multiple} only: "
            f"{up[0]}x{up[1]} is the next larger size"
        )
    return settings._replace(width=down[0], height=down[1])


def latent_shape(pipe: Pipeline, settings: Settings) -> tuple[int, int, int, int]:
    P = pipe.autoencoder.pixels
    return 1, channels(pipe.denoiser), settings.height // P, settings.width // P


def filled(pipe: Pipeline, settings: Settings) -> Settings:
    """With the family's and the engine's defaults. Raises BadInput for what this model has no use for."""
    own, flow = pipe.variant, pipe.variant.flow
    wants_guidance = "guidance" in pipe.denoiser.fits and pipe.denoiser.fits["guidance"].holds(1)
    refused = {
        "guidance": (settings.guidance, wants_guidance, "embeds no guidance; --cfg-scale guides it"),
        "flow-shift": (settings.flow_shift, flow is not None, "is no rectified flow"),
        "prediction": (settings.prediction, flow is None, "is a rectified flow"),
        "img-cfg-scale": (settings.image_cfg_scale, own.extra_channels == "edit", "edits no picture"),
        "circular": (settings.seams.x or settings.seams.y or None, flow is None, "has no convolutions to wrap"),
    }
    for flag, (said, fits, why) in refused.items():
        if said is not None and not fits:
            raise BadInput(f"--{flag}: {pipe.variant.title} {why}; leave it out")
    if settings.cfg_scale is None:
        settings = settings._replace(cfg_scale=own.cfg_scale)
    sampler = settings.sampler or (own.sampler if settings.like == "sdcpp" else "euler")
    schedule = own.schedule[settings.like]
    image = settings.image_cfg_scale
    if image is None:
        image = settings.cfg_scale if settings.like == "sdcpp" else 1.5
    return settings._replace(
        width=settings.width or 512,
        height=settings.height or 512,
        steps=settings.steps or own.steps,
        sampler=sampler,
        schedule=settings.schedule or sampling.default_schedule(sampler, schedule),
        rng=settings.rng or ("cuda" if settings.like == "sdcpp" else "cpu"),
        guidance=(settings.guidance or own.guidance) if wants_guidance else None,
        prediction=None if flow else prediction_of(pipe.checkpoint, pipe.denoiser, settings.prediction),
        image_cfg_scale=image if own.extra_channels == "edit" else None,
    )
