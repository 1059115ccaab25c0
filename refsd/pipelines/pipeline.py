"""A checkpoint as what draws: its parts, opened, and the settings as the family fills them in."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from refsd.golden.arithmetic import Arithmetic
from refsd.golden.errors import BadInput
from refsd.module import Kept
from refsd.pipelines import sampling
from refsd.pipelines.autoencoders import KINDS, PIXELS, Autoencoder, open_autoencoder
from refsd.pipelines.conditioning import Conditioned
from refsd.pipelines.families import DRAWINGS, Drawing
from refsd.pipelines.part import Loras, Part, check_parts, open_part
from refsd.pipelines.prediction import prediction_of
from refsd.pipelines.prompts import Tokenizers
from refsd.pipelines.settings import Settings
from refsd.weights import Checkpoint
from refsd.weights.detect import DENOISERS
from refsd.weights.families import Family


class Pipeline(NamedTuple):
    family: Family
    drawing: Drawing
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

    cond: Conditioned
    uncond: Conditioned | None


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
    if family.name not in DRAWINGS:
        raise BadInput(
            f"{checkpoint.path}: {family.title} ({family.why}); txt2img does not draw with it: "
            "run its components with refsd forward"
        )
    drawing = DRAWINGS[family.name]
    needed = [(name,) for name in drawing.encoders if name not in drawing.optional]
    check_parts(checkpoint, needed if drawing.on_pixels else [*needed, KINDS])
    name = next(name for name in DENOISERS if name in checkpoint.components)
    network = open_part(checkpoint, name, arithmetic, loras, Kept(budget))
    there = [name for name in drawing.encoders if name in checkpoint.components]
    encoders = {name: open_part(checkpoint, name, arithmetic, loras) for name in there}
    vae = PIXELS if drawing.on_pixels else open_autoencoder(checkpoint, arithmetic, channels(network))
    return Pipeline(family, drawing, encoders, network, vae, tokenizers, checkpoint)


def channels(network: Part) -> int:
    """Of the latents: those that come out."""
    fits = network.fits
    return fits.get("K", fits["C"]).n


def patch(network: Part) -> int:
    """What the sides of a latent must be multiples of."""
    fits = network.fits
    return fits["H"].n if "H" in fits else 1


def size_multiple(pipe: Pipeline) -> int:
    """What width and height must be multiples of: the autoencoder's factor times the network's; 64 for SD."""
    return pipe.autoencoder.pixels * patch(pipe.denoiser)


def latent_shape(pipe: Pipeline, settings: Settings) -> tuple[int, int, int, int]:
    P = pipe.autoencoder.pixels
    return 1, channels(pipe.denoiser), settings.height // P, settings.width // P


def filled(pipe: Pipeline, settings: Settings) -> Settings:
    """With the family's and the engine's defaults. Raises BadInput for what this model has no use for."""
    row, flow = pipe.drawing, pipe.drawing.flow
    wants_guidance = "guidance" in pipe.denoiser.fits and pipe.denoiser.fits["guidance"].holds(1)
    refused = {
        "guidance": (settings.guidance, wants_guidance, "embeds no guidance; --cfg-scale guides it"),
        "flow-shift": (settings.flow_shift, flow is not None, "is no rectified flow"),
        "prediction": (settings.prediction, flow is None, "is a rectified flow"),
        "img-cfg-scale": (settings.image_cfg_scale, row.behind == "edit", "edits no picture"),
        "circular": (settings.seams.x or settings.seams.y or None, flow is None, "has no convolutions to wrap"),
    }
    for flag, (said, fits, why) in refused.items():
        if said is not None and not fits:
            raise BadInput(f"--{flag}: {pipe.family.title} {why}; leave it out")
    if settings.cfg_scale is None:
        settings = settings._replace(cfg_scale=row.cfg_scale)
    sampler = settings.sampler or (row.sampler if settings.like == "sdcpp" else "euler")
    own = row.schedule[settings.like]
    image = settings.image_cfg_scale
    if image is None:
        image = settings.cfg_scale if settings.like == "sdcpp" else 1.5
    return settings._replace(
        width=settings.width or 512,
        height=settings.height or 512,
        steps=settings.steps or row.steps,
        sampler=sampler,
        schedule=settings.schedule or sampling.default_schedule(sampler, own),
        rng=settings.rng or ("cuda" if settings.like == "sdcpp" else "cpu"),
        guidance=(settings.guidance or row.guidance) if wants_guidance else None,
        prediction=None if flow else prediction_of(pipe.checkpoint, pipe.denoiser, settings.prediction),
        image_cfg_scale=image if row.behind == "edit" else None,
    )
