"""Cards of pictures: differences between engines that no setting of the user decides, one field each."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from refsd.conventions.prompts import PromptCard
from refsd.conventions.sampling import Truncation
from refsd.samplers.levels import FlowLevels, Levels
from refsd.samplers.schedules import SCHEDULES, Schedule
from refsd.samplers.schedules.flow import FLOW_SCHEDULES
from refsd.tokenizers.textual_inversion import Find

T = TypeVar("T")


@dataclass(frozen=True)
class Convention:
    """What one engine does in each case where engines differ.

    name:              value of --like
    family_rows:       key of its rows in the families' tables: text rules, default schedule, flow shift; tables
                       without such a row are read in stable-diffusion.cpp's
    draws:             UNets of which refsd knows this engine's rules; other variants name it themselves; None: all

    prompt:            how it parses, chunks and weighs a prompt; how it counts clip skip, and for which prompts
    find_embedding:    how the name of a learned embedding is found in a prompt
    named_by_token:    True if an embedding's name is the token that its file stores; False: the file's name
    projects_clip_l:   True if SD 3's CLIP-L multiplies its pooled text by text_projection
    clip_skips:        variants of which refsd knows this engine's clip skip; None: all
    edits_prompt:      prompt -> True if this engine edits or combines prompts during sampling, which refsd does not
    weighs_together:   True if SDXL's CLIP-L and bigG are weighted as one array
    zeros_empty:       True if SDXL's empty negative prompt becomes zeros
    zeros_pooled:      True if it zeroes the pooled text as well as the hidden states
    zeros_refiner:     True if the refiner's empty negative prompt zeroes its hidden states

    unet_multiple:     the sides of a UNet's latent must be multiples of this
    pads_patches:      True if transformers pad the last patches with zeros; False: sides must be whole patches
    rounds_size_up:    True if other sizes are rounded up to the next multiple; False: rounded down if the family
                       has rounds_size_down, else refused
    rounds_size_down:  True if other sizes of UNets are rounded down, and those of transformers refused

    cfg_scale:         default of --cfg-scale for UNets; None: the family's
    sampler:           default sampler; None: the family's
    samplers:          samplers that it has -> refsd's name of its algorithm; None: all, under refsd's names
    brownian:          samplers whose noise is that of a Brownian motion
    sampler_schedules: default schedules of samplers that have their own
    schedules:         schedules whose names mean something else in refsd, or that refsd lacks
    sdxl_schedules:    the same for SDXL alone
    flow_schedules:    the same for rectified flows alone
    discarding:        samplers for which the last sigma above 0 is left out
    levels:            a UNet's sigmas -> noise levels, and the network's timestep at each
    reads_scheduler:   True if scheduler_config.json sets the noise levels and the flow shift; False: a UNet of
                       other levels than Stable Diffusion's is refused
    truncation:        sigmas that --strength leaves
    flow_truncation:   the same for a rectified flow
    hires_truncation:  the same for a hires pass; None: it has no such pass
    flow_ending:       (sampler, last sigma) -> factor of a flow's last latents
    flow_options:      a flow's shift -> options of the solvers that take them; none: the solvers' own
    first_noise:       (sigma_0, highest sigma) -> factor of a UNet's initial noise
    first_noise_on_image: True if that factor also holds for noise on an initial latent; False: sigma_0
    sigma_schedules:   schedules whose initial noise is multiplied by sigma_0 instead
    image_cfg_scale:   default of --img-cfg-scale; None: --cfg-scale
    skipping_steps:    (steps, start, end as shares) -> the steps in which skip-layer guidance skips

    rng:               default random generator
    step_rng:          default generator of the noise between steps, which starts from the seed; None: that of the
                       first noise goes on
    step_seed:         what is added to that seed where the generator is a CPU's
    whole_batch:       True if one random stream draws for all pictures of a batch together; False: picture b's
                       stream has the seed + b
    one_stream:        True if one random stream gives both the posterior samples and the noise of a picture; False:
                       a stream of the first seed gives all posterior samples of a batch
    draws_init:        True if the initial picture's latent is sampled from its posterior; False: it is the mean
    draws_reference:   True if a reference image's latent is sampled from its posterior; False: it is the mean
    latent_mask:       (pixel mask, pixels per latent) -> latent mask; None: refsd does not know its inpainting
    masks_input:       True if the network sees the noised initial latent around the mask
    keeps_unmasked:    True if each step restores an inpainting model's unmasked latents
    full_strength_ignores_init: True if an inpainting model at --strength 1 starts from noise alone
    uncond_sees_image: True if the call without the prompt also gets the image in the extra channels; False: zeros
    takes_apart:       True if refsd knows how it takes a picture apart into layers
    """

    name: str
    family_rows: str
    draws: tuple[str, ...] | None

    prompt: PromptCard
    find_embedding: Find
    named_by_token: bool
    projects_clip_l: bool
    clip_skips: tuple[str, ...] | None
    edits_prompt: Callable[[str], bool]
    weighs_together: bool
    zeros_empty: bool
    zeros_pooled: bool
    zeros_refiner: bool

    unet_multiple: int
    pads_patches: bool
    rounds_size_up: bool
    rounds_size_down: bool

    cfg_scale: float | None
    sampler: str | None
    samplers: Mapping[str, str] | None
    brownian: frozenset[str]
    sampler_schedules: Mapping[str, str]
    schedules: Mapping[str, Schedule]
    sdxl_schedules: Mapping[str, Schedule]
    flow_schedules: Mapping[str, Callable[[int, FlowLevels], np.ndarray]]
    discarding: frozenset[str]
    levels: Callable[[np.ndarray], Levels]
    reads_scheduler: bool
    truncation: Truncation
    flow_truncation: Truncation
    hires_truncation: Truncation | None
    flow_ending: Callable[[str, float], float]
    flow_options: Callable[[float], Mapping[str, Any]]
    first_noise: Callable[[float, float], float]
    first_noise_on_image: bool
    sigma_schedules: tuple[str, ...]
    image_cfg_scale: float | None
    skipping_steps: Callable[[int, float, float], range]

    rng: str
    step_rng: str | None
    step_seed: int
    whole_batch: bool
    one_stream: bool
    draws_init: bool
    draws_reference: bool
    latent_mask: Callable[[np.ndarray, int], np.ndarray] | None
    masks_input: bool
    keeps_unmasked: bool
    full_strength_ignores_init: bool
    uncond_sees_image: bool
    takes_apart: bool

    def row(self, rows: Mapping[str, T]) -> T:
        """Return this engine's row of a family's table."""
        return rows[self.family_rows] if self.family_rows in rows else rows["sdcpp"]

    def default_schedule(self, sampler: str, rows: Mapping[str, str]) -> str:
        """Return the schedule of a sampler without the user's. rows: default schedules of a family"""
        return self.sampler_schedules.get(sampler, self.row(rows))

    def known_schedules(self, sdxl: bool, flow: bool) -> Mapping[str, Callable[[int, Any], np.ndarray]]:
        """Return the schedules, by name. sdxl: True for SDXL; flow: for a rectified flow"""
        if flow:
            return {**SCHEDULES, **FLOW_SCHEDULES, **self.schedules, **self.flow_schedules}
        return {**SCHEDULES, **self.schedules, **(self.sdxl_schedules if sdxl else {})}
