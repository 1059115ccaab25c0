"""diffusers: conventions of its pipelines and schedulers."""

import math

from refsd.conventions.card import EngineCard, cards
from refsd.conventions.masks import MaskCard, binary, first_of_square
from refsd.conventions.pictures import Convention
from refsd.conventions.prompts import PromptCard, literally, never, skipped
from refsd.conventions.sampling import (
    BROWNIAN,
    SDCPP_SCHEDULES,
    Card,
    fewer,
    fewer_rounded_up,
    in_range_of,
    named,
    one_stream,
    unit_data,
)
from refsd.samplers.levels import DiscreteLevels
from refsd.samplers.noise import TorchAvx2
from refsd.samplers.schedules import SCHEDULES
from refsd.samplers.schedules.flow import FLOW_SCHEDULES
from refsd.tokenizers.chunking import cut_off
from refsd.tokenizers.textual_inversion import longest

# use_karras_sigmas and similar options. Of EulerDiscreteScheduler the range is that of its spacing, by default
# linspace, whose one step is the lowest level; of the multistep schedulers it is the model's.
_OPTIONS = {"karras": "karras", "exponential": "exponential", "beta": "beta_of_sigma"}
_SPACED = {
    f"{prefix}{name}": in_range_of(SCHEDULES[spacing], SCHEDULES[rule])
    for spacing, prefix in (("linspace", ""), ("leading", "leading_"), ("trailing", "trailing_"))
    for name, rule in _OPTIONS.items()
} | {f"{name}_multistep": SCHEDULES[rule] for name, rule in _OPTIONS.items()}


def between(steps: int, start: float, end: float) -> range:
    """Return the steps i with start steps < i < end steps, counted from 0.

    Source: diffusers StableDiffusion3Pipeline.__call__, should_skip_layers.
    """
    return range(math.floor(start * steps) + 1, math.ceil(end * steps))


SAMPLING = Card(
    "diffusers",
    "torch's CPU generator",
    one_stream(TorchAvx2),
    DiscreteLevels,
    named(*("leading", "linspace", "trailing", "leading_multistep", "linspace_multistep"), **_SPACED),
    "leading",
    unit_data,
    fewer,
    source="diffusers schedulers/scheduling_euler_discrete.py; SD 1.5's and SDXL's scheduler configs",
    of_flows={name: FLOW_SCHEDULES[name] for name in ("flow_linspace", "flow_below_one")},
    flow_schedule="flow_linspace",
    flow_truncation=fewer_rounded_up,
)
PROMPTS = PromptCard(
    "diffusers",
    literally,
    cut_off,
    None,
    skipped,
    longest,
    "diffusers pipelines/stable_diffusion/pipeline_stable_diffusion.py, encode_prompt; TextualInversionLoaderMixin",
    negative=False,
)
MASKS = MaskCard(
    binary,
    first_of_square,
    before=False,
    at_x0=False,
    after=True,
    source="diffusers StableDiffusionInpaintPipeline, its image processor with do_binarize",
)
# Source: diffusers pipelines/, schedulers/scheduling_euler_discrete.py.
PICTURES = Convention(
    name="diffusers",
    **cards(SAMPLING, PROMPTS, MASKS),
    family_rows="diffusers",
    draws=None,
    named_by_token=True,
    projects_clip_l=True,
    clip_skips=None,
    edits_prompt=never,
    weighs_together=True,
    zeros_empty=True,
    zeros_pooled=True,
    zeros_refiner=False,
    unet_multiple=1,
    pads_patches=False,
    rounds_size_up=False,
    rounds_size_down=False,
    cfg_scale=None,
    sampler="euler",
    samplers=None,
    brownian=frozenset(BROWNIAN),
    sampler_schedules=SDCPP_SCHEDULES,
    schedules={},
    sdxl_schedules={},
    reads_scheduler=True,
    flow_ending=lambda sampler, sigma: 1.0,
    flow_options=lambda shift: {},
    hires_truncation=None,
    first_noise_on_image=False,
    sigma_schedules=("linspace", "trailing"),
    image_cfg_scale=1.5,
    skipping_steps=between,
    rng="cpu",
    step_rng=None,
    step_seed=0,
    whole_batch=False,
    one_stream=True,
    draws_init=True,
    draws_reference=False,
    keeps_unmasked=False,
    full_strength_ignores_init=True,
    uncond_sees_image=True,
    takes_apart=True,
)

CARD = EngineCard("diffusers", SAMPLING, PROMPTS, PICTURES, MASKS)
