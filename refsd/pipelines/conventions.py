"""What stable-diffusion.cpp and diffusers do differently where the user does not decide, field by field.

A further engine is one more instance in CONVENTIONS.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from refsd.samplers.conventions import (
    Truncation,
    fewer,
    fewer_rounded_up,
    from_the_end_sdcpp,
    times_sigma,
    unit_data,
)
from refsd.tokenizers.cards import PROMPT_CARDS, PromptCard

T = TypeVar("T")


def largest_of_square(mask: np.ndarray, pixels: int) -> np.ndarray:
    """A mask of latents: 1 if any pixel of the latent's square is 1. [1, 1, H, W] -> [1, 1, H / pixels, W / pixels]

    Source: stable-diffusion.cpp prepare_image_generation_latents.
    """
    return _squares(mask, pixels).max(axis=(3, 5))


def first_of_square(mask: np.ndarray, pixels: int) -> np.ndarray:
    """A mask of latents: the first pixel of the latent's square.

    Source: diffusers prepare_mask_latents, interpolate.
    """
    return _squares(mask, pixels)[:, :, :, 0, :, 0]


def _squares(mask: np.ndarray, pixels: int) -> np.ndarray:
    _, _, H, W = mask.shape
    return mask.reshape(1, 1, H // pixels, pixels, W // pixels, pixels)


@dataclass(frozen=True)
class Convention:
    """How an engine draws.

    name:              value of --like
    family_rows:       key of its rows on the family pages: text rules, default schedule, flow shift

    prompt:            how it parses, chunks and weighs a prompt; what clip skip counts from, and for which prompts
    projects_clip_l:   True if SD 3's CLIP-L multiplies its pooled text by text_projection
    zeros_pooled:      True if SDXL's empty negative prompt zeroes the pooled text too, not the hidden states alone
    zeros_refiner:     True if the refiner's empty negative prompt zeroes its hidden states

    unet_multiple:     what the sides of a UNet's latent must be multiples of
    pads_patches:      True if a transformer pads its last patches with zeros; False: sides are multiples of a patch
    rounds_size_up:    True if other sizes go up to the next multiple; False: down where the family's page says so,
                       else they are refused

    sampler:           default; None: the family's
    reads_scheduler:   True if scheduler_config.json sets the noise levels and the flow shift; False: a UNet of
                       other levels than Stable Diffusion's is refused
    truncation:        sigmas that --strength leaves
    flow_truncation:   the same for a rectified flow
    first_noise:       sigma_0, highest sigma -> factor of the first noise of a UNet
    sigma_schedules:   schedules whose first noise is multiplied by sigma_0 all the same
    image_cfg_scale:   default of --img-cfg-scale; None: --cfg-scale

    rng:               default generator
    one_stream:        True if a picture's posterior and its noise come from one stream; False: the posteriors of a
                       batch come from a stream of its first seed
    draws_reference:   True if a reference picture's latent is drawn from its posterior; False: its mean
    latent_mask:       mask of pixels, pixels per latent -> mask of latents
    keeps_unmasked:    True if an inpainting model's unmasked latents are put back at each step
    full_strength_ignores_init: True if an inpainting model at --strength 1 starts from noise alone
    uncond_sees_image: True if the extra input channels hold the picture without the prompt too; False: zeros
    """

    name: str
    family_rows: str

    prompt: PromptCard
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
    first_noise: Callable[[float, float], float]
    sigma_schedules: tuple[str, ...]
    image_cfg_scale: float | None

    rng: str
    one_stream: bool
    draws_reference: bool
    latent_mask: Callable[[np.ndarray, int], np.ndarray]
    keeps_unmasked: bool
    full_strength_ignores_init: bool
    uncond_sees_image: bool

    def row(self, rows: Mapping[str, T]) -> T:
        """This engine's row of a family page's table."""
        return rows[self.family_rows]


# Source: stable-diffusion.cpp src/stable-diffusion.cpp, src/conditioner.hpp, examples/cli.
SDCPP = Convention(
    name="sdcpp",
    family_rows="sdcpp",
    prompt=PROMPT_CARDS["sdcpp"],
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
    first_noise=times_sigma,
    sigma_schedules=(),
    image_cfg_scale=None,
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
    first_noise=unit_data,
    sigma_schedules=("linspace", "trailing"),
    image_cfg_scale=1.5,
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
