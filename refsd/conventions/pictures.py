"""Differences between stable-diffusion.cpp and diffusers that no setting of the user decides, one field each.

To support another engine, add an instance to CONVENTIONS.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from refsd.samplers.conventions import (
    Truncation,
    fewer,
    fewer_rounded_up,
    from_the_end_sdcpp,
    hires_sdcpp,
    times_sigma,
    unit_data,
)
from refsd.tokenizers.cards import PROMPT_CARDS, PromptCard
from refsd.tokenizers.textual_inversion import FINDS, Find

T = TypeVar("T")


def largest_of_square(mask: np.ndarray, pixels: int) -> np.ndarray:
    """Reduce a pixel mask to latents: 1 if any pixel of a square is 1. [1, 1, H, W] -> [1, 1, H/pixels, W/pixels]

    Source: stable-diffusion.cpp prepare_image_generation_latents.
    """
    return _squares(mask, pixels).max(axis=(3, 5))


def first_of_square(mask: np.ndarray, pixels: int) -> np.ndarray:
    """Reduce a pixel mask to latents: take the first pixel of each square.

    Source: diffusers prepare_mask_latents, interpolate.
    """
    return _squares(mask, pixels)[:, :, :, 0, :, 0]


def between(steps: int, start: float, end: float) -> range:
    """Return the steps i with start steps < i < end steps, counted from 0.

    Source: diffusers StableDiffusion3Pipeline.__call__, should_skip_layers.
    """
    return range(math.floor(start * steps) + 1, math.ceil(end * steps))


def between_counted_from_one(steps: int, start: float, end: float) -> range:
    """Return the steps i, counted from 0, with int(start (steps + 1)) < i + 1 < int(end (steps + 1)).

    Source: stable-diffusion.cpp src/runtime/guidance.cpp, SkipLayerGuidance::is_enabled_for_step.
    """
    first, last = (int(np.float32(share) * np.float32(steps + 1)) for share in (start, end))
    return range(first, last - 1)


def _squares(mask: np.ndarray, pixels: int) -> np.ndarray:
    _, _, H, W = mask.shape
    return mask.reshape(1, 1, H // pixels, pixels, W // pixels, pixels)


@dataclass(frozen=True)
class Convention:
    """What one engine does in each case where engines differ.

    name:              value of --like
    family_rows:       key of its rows in the families' tables: text rules, default schedule, flow shift

    prompt:            how it parses, chunks and weighs a prompt; how it counts clip skip, and for which prompts
    find_embedding:    how the name of a learned embedding is found in a prompt
    named_by_token:    True if an embedding's name is the token that its file stores; False: the file's name
    projects_clip_l:   True if SD 3's CLIP-L multiplies its pooled text by text_projection
    zeros_pooled:      True if SDXL's empty negative prompt zeroes the pooled text as well as the hidden states
    zeros_refiner:     True if the refiner's empty negative prompt zeroes its hidden states

    unet_multiple:     the sides of a UNet's latent must be multiples of this
    pads_patches:      True if transformers pad the last patches with zeros; False: sides must be whole patches
    rounds_size_up:    True if other sizes are rounded up to the next multiple; False: rounded down if the family
                       has rounds_size_down, else refused

    sampler:           default sampler; None: the family's
    reads_scheduler:   True if scheduler_config.json sets the noise levels and the flow shift; False: a UNet of
                       other levels than Stable Diffusion's is refused
    truncation:        sigmas that --strength leaves
    flow_truncation:   the same for a rectified flow
    hires_truncation:  the same for a hires pass; None: it has no such pass
    first_noise:       (sigma_0, highest sigma) -> factor of a UNet's initial noise
    sigma_schedules:   schedules whose initial noise is multiplied by sigma_0 instead
    image_cfg_scale:   default of --img-cfg-scale; None: --cfg-scale
    skipping_steps:    (steps, start, end as shares) -> the steps in which skip-layer guidance skips

    rng:               default random generator
    one_stream:        True if one random stream gives both the posterior samples and the noise of a picture; False:
                       a stream of the first seed gives all posterior samples of a batch
    draws_reference:   True if a reference image's latent is sampled from its posterior; False: it is the mean
    latent_mask:       (pixel mask, pixels per latent) -> latent mask
    keeps_unmasked:    True if each step restores an inpainting model's unmasked latents
    full_strength_ignores_init: True if an inpainting model at --strength 1 starts from noise alone
    uncond_sees_image: True if the call without the prompt also gets the image in the extra channels; False: zeros
    """

    name: str
    family_rows: str

    prompt: PromptCard
    find_embedding: Find
    named_by_token: bool
    projects_clip_l: bool
    zeros_pooled: bool
    zeros_refiner: bool

    unet_multiple: int
    pads_patches: bool
    rounds_size_up: bool

    sampler: str | None
    reads_scheduler: bool
    truncation: Truncation
    flow_truncation: Truncation
    hires_truncation: Truncation | None
    first_noise: Callable[[float, float], float]
    sigma_schedules: tuple[str, ...]
    image_cfg_scale: float | None
    skipping_steps: Callable[[int, float, float], range]

    rng: str
    one_stream: bool
    draws_reference: bool
    latent_mask: Callable[[np.ndarray, int], np.ndarray]
    keeps_unmasked: bool
    full_strength_ignores_init: bool
    uncond_sees_image: bool

    def row(self, rows: Mapping[str, T]) -> T:
        """Return this engine's row of a family's table."""
        return rows[self.family_rows]


# Source: stable-diffusion.cpp src/stable-diffusion.cpp, src/conditioner.hpp, examples/cli.
SDCPP = Convention(
    name="sdcpp",
    family_rows="sdcpp",
    prompt=PROMPT_CARDS["sdcpp"],
    find_embedding=FINDS["sdcpp"],
    named_by_token=False,
    projects_clip_l=False,
    zeros_pooled=False,
    zeros_refiner=True,
    unet_multiple=8,
    pads_patches=True,
    rounds_size_up=True,
    sampler=None,
    reads_scheduler=False,
    truncation=from_the_end_sdcpp,
    flow_truncation=from_the_end_sdcpp,
    hires_truncation=hires_sdcpp,
    first_noise=times_sigma,
    sigma_schedules=(),
    image_cfg_scale=None,
    skipping_steps=between_counted_from_one,
    rng="cuda",
    one_stream=False,
    draws_reference=True,
    latent_mask=largest_of_square,
    keeps_unmasked=True,
    full_strength_ignores_init=False,
    uncond_sees_image=False,
)
# Source: diffusers pipelines/, schedulers/scheduling_euler_discrete.py.
DIFFUSERS = Convention(
    name="diffusers",
    family_rows="diffusers",
    prompt=PROMPT_CARDS["diffusers"],
    find_embedding=FINDS["diffusers"],
    named_by_token=True,
    projects_clip_l=True,
    zeros_pooled=True,
    zeros_refiner=False,
    unet_multiple=1,
    pads_patches=False,
    rounds_size_up=False,
    sampler="euler",
    reads_scheduler=True,
    truncation=fewer,
    flow_truncation=fewer_rounded_up,
    hires_truncation=None,
    first_noise=unit_data,
    sigma_schedules=("linspace", "trailing"),
    image_cfg_scale=1.5,
    skipping_steps=between,
    rng="cpu",
    one_stream=True,
    draws_reference=False,
    latent_mask=first_of_square,
    keeps_unmasked=False,
    full_strength_ignores_init=True,
    uncond_sees_image=True,
)

CONVENTIONS = {convention.name: convention for convention in (SDCPP, DIFFUSERS)}
DEFAULT = SDCPP
