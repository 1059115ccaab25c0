"""Cards of pictures: differences between engines that no setting of the user decides, one field each."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from refsd.conventions.prompts import PromptCard
from refsd.conventions.sampling import Truncation
from refsd.tokenizers.textual_inversion import Find

T = TypeVar("T")


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
