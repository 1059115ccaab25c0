"""A1111's web UI: conventions."""

from dataclasses import replace

from refsd.conventions import sdcpp
from refsd.conventions.card import EngineCard, cards
from refsd.conventions.prompts import PromptCard, at_least_the_familys, edited_or_combined
from refsd.conventions.sampling import Card, from_the_end, named, stream_for_each, times_sigma
from refsd.samplers.levels import DiscreteLevels
from refsd.samplers.noise import Philox
from refsd.samplers.schedules import SCHEDULES, tables, timesteps
from refsd.tokenizers.chunking import at_commas
from refsd.tokenizers.emphasis import mean_kept
from refsd.tokenizers.prompt import parse_attention
from refsd.tokenizers.textual_inversion import by_tokens

SAMPLING = Card(
    "a1111",
    "torch on the GPU (Philox)",
    stream_for_each(Philox),
    DiscreteLevels,
    named(
        *("karras", "exponential", "polyexponential", "sgm_uniform", "simple"),
        uniform=timesteps.discrete,
        normal=timesteps.discrete,
        kl_optimal=SCHEDULES["kl_optimal_to_smin"],
        align_your_steps=lambda n, levels: tables.align_your_steps_appended(n, tables.AYS_SD1),
        ddim=timesteps.ddim_uniform,
        beta=timesteps.beta_of_sigma,
    ),
    "uniform",
    times_sigma,
    from_the_end,
    frozenset({"dpm2", "dpm2_a", "dpm++3m_sde"}),
    source="A1111 modules/sd_samplers_kdiffusion.py, modules/rng.py",
    of_sdxl_tables={
        "align_your_steps": lambda n, levels: tables.align_your_steps_appended(n, tables.AYS_SDXL),
    },
)
PROMPTS = PromptCard(
    "a1111",
    parse_attention,
    at_commas,
    mean_kept,
    at_least_the_familys,
    by_tokens,
    "A1111 modules/prompt_parser.py, sd_hijack_clip.py, sd_emphasis.py, textual_inversion/textual_inversion.py",
)

# Its k-diffusion samplers of which refsd has the algorithm and the noise. Those with a Brownian motion draw it from
# Philox, where refsd's is torch's; DDIM, PLMS and UniPC walk over timesteps.
SAMPLERS = ("dpm++2m", "dpm++2s_a", "euler_a", "euler", "lms", "heun", "dpm2", "dpm2_a", "restart")
# With the settings that it starts with. Sources: A1111 modules/processing.py; modules/sd_samplers_kdiffusion.py;
# modules/sd_samplers_common.py; modules/sd_samplers_cfg_denoiser.py; modules/sd_models_xl.py; modules/rng.py. Its
# global generator, which nothing seeds, samples the posterior of an initial picture: refsd takes the mean. To draw
# sizes that are no multiples of 64 it resizes inside the UNet, which refsd does not.
# Fields that are not named concern models that it does not draw here.
PICTURES = replace(
    sdcpp.PICTURES,
    name="a1111",
    **cards(SAMPLING, PROMPTS),
    draws=("sd15", "sd2", "sdxl"),
    clip_skips=("sd15",),
    edits_prompt=edited_or_combined,
    weighs_together=False,
    zeros_pooled=True,
    rounds_size_up=False,
    sampler="dpm++2m",
    samplers={name: name for name in SAMPLERS},
    brownian=frozenset(),
    sampler_schedules=dict.fromkeys(("dpm++2m", "dpm++2s_a", "dpm2", "dpm2_a", "restart"), "karras"),
    schedules=SAMPLING.schedules,
    sdxl_schedules=SAMPLING.of_sdxl_tables,
    hires_truncation=None,
    rng="nv",
    draws_init=False,
)

CARD = EngineCard("a1111", SAMPLING, PROMPTS, PICTURES)
