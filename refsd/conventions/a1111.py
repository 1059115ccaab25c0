"""A1111's web UI: conventions."""

from refsd.conventions.card import EngineCard
from refsd.conventions.prompts import PromptCard, at_least_the_familys
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

CARD = EngineCard("a1111", SAMPLING, PROMPTS)
