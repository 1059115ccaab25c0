"""stable-diffusion.cpp: conventions of sd-cli and sd-server.

Sources: src/runtime/denoiser.hpp, src/stable-diffusion.cpp, src/conditioner.hpp, src/util.cpp, examples/cli.
"""

import numpy as np

from refsd.conventions.card import EngineCard, cards
from refsd.conventions.masks import MaskCard, binary, largest_of_square
from refsd.conventions.pictures import Convention
from refsd.conventions.prompts import PromptCard, as_given, never
from refsd.conventions.sampling import (
    BROWNIAN,
    SDCPP_SCHEDULES,
    Card,
    from_the_end_sdcpp,
    hires_sdcpp,
    named,
    stream_for_each,
    times_sigma,
)
from refsd.samplers.levels import DiscreteLevels
from refsd.samplers.noise import Philox
from refsd.samplers.schedules import tables
from refsd.tokenizers.emphasis import mean_kept
from refsd.tokenizers.prompt import cut
from refsd.tokenizers.sdcpp_prompt import parse_attention_sdcpp
from refsd.tokenizers.textual_inversion import wherever


def between_counted_from_one(steps: int, start: float, end: float) -> range:
    """Return the steps i, counted from 0, with int(start (steps + 1)) < i + 1 < int(end (steps + 1)).

    Source: stable-diffusion.cpp src/runtime/guidance.cpp, SkipLayerGuidance::is_enabled_for_step.
    """
    first, last = (int(np.float32(share) * np.float32(steps + 1)) for share in (start, end))
    return range(first, last - 1)


SAMPLING = Card(
    "sdcpp",
    "cuda (Philox)",
    stream_for_each(Philox),
    DiscreteLevels,
    named(
        *("discrete", "karras", "exponential", "ays", "gits", "sgm_uniform", "simple", "smoothstep", "kl_optimal"),
        *("lcm", "bong_tangent", "beta"),
    ),
    "discrete",
    times_sigma,
    from_the_end_sdcpp,
    source="stable-diffusion.cpp src/runtime/denoiser.hpp, src/stable-diffusion.cpp",
    of_sdxl_tables={"ays": lambda n, levels: tables.align_your_steps(n, tables.AYS_SDXL_LEVELS)},
)
PROMPTS = PromptCard(
    "sdcpp",
    parse_attention_sdcpp,
    cut,
    mean_kept,
    as_given,
    wherever,
    "stable-diffusion.cpp src/conditioner.hpp, src/util.cpp, src/tokenizers/tokenize_util.cpp",
)
MASKS = MaskCard(
    binary,
    largest_of_square,
    before=False,
    at_x0=True,
    after=False,
    source="stable-diffusion.cpp prepare_image_generation_latents, denoise_mask",
)
# Source: stable-diffusion.cpp src/stable-diffusion.cpp, src/conditioner.hpp, examples/cli.
PICTURES = Convention(
    name="sdcpp",
    **cards(SAMPLING, PROMPTS, MASKS),
    family_rows="sdcpp",
    draws=None,
    named_by_token=False,
    projects_clip_l=False,
    clip_skips=None,
    edits_prompt=never,
    weighs_together=True,
    zeros_empty=True,
    zeros_pooled=False,
    zeros_refiner=True,
    unet_multiple=8,
    pads_patches=True,
    rounds_size_up=True,
    rounds_size_down=False,
    cfg_scale=None,
    sampler=None,
    samplers=None,
    brownian=frozenset(BROWNIAN),
    sampler_schedules=SDCPP_SCHEDULES,
    schedules={},
    sdxl_schedules={},
    reads_scheduler=False,
    flow_ending=lambda sampler, sigma: 1.0,
    flow_options=lambda shift: {},
    hires_truncation=hires_sdcpp,
    first_noise_on_image=True,
    sigma_schedules=(),
    image_cfg_scale=None,
    skipping_steps=between_counted_from_one,
    rng="cuda",
    step_rng=None,
    step_seed=0,
    whole_batch=False,
    one_stream=False,
    draws_init=True,
    draws_reference=True,
    keeps_unmasked=True,
    full_strength_ignores_init=False,
    uncond_sees_image=False,
    takes_apart=False,
)

CARD = EngineCard("sdcpp", SAMPLING, PROMPTS, PICTURES, MASKS)
