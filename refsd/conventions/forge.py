"""Forge: A1111's conventions where it did not replace its code."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from refsd.conventions import a1111, comfyui
from refsd.conventions.card import EngineCard, cards
from refsd.samplers.levels import FlowLevels, NearestLevels
from refsd.samplers.schedules import SCHEDULES, tables, timesteps


def _of_flows(name: str) -> Callable[[int, FlowLevels], np.ndarray]:
    """Return ComfyUI's schedule; for Flux, whose network reads sigma itself, space sigmas evenly down from 1.

    Source: Forge modules/sd_schedulers.py; backend/modules/k_prediction.py, PredictionFlux.sigma.
    """

    def rule(n: int, levels: FlowLevels) -> np.ndarray:
        if levels.multiplier != 1:
            return comfyui.FLOWS[name](n, levels)
        spared = int(name == "sgm_uniform")
        return np.append(np.linspace(1.0, levels.sigmas[0], n + spared)[:n], 0.0)

    return rule


SAMPLING = a1111.SAMPLING._replace(
    engine="forge",
    levels=NearestLevels,
    schedules={
        **a1111.SAMPLING.schedules,
        "turbo": timesteps.turbo,
        "align_your_steps_11": SCHEDULES["ays_11"],
        "align_your_steps_32": SCHEDULES["ays_32"],
        "align_your_steps_GITS": SCHEDULES["ays_gits"],
    },
    source="Forge modules/sd_samplers_kdiffusion.py, modules/rng.py, backend/modules/k_prediction.py",
    no_signal=comfyui.SAMPLING.no_signal,
    of_flows={name: _of_flows(name) for name in comfyui.FLOWS},
    of_sdxl_tables={
        name: lambda n, levels, table=table: tables.align_your_steps_appended(n, table)
        for name, table in {
            "align_your_steps": tables.AYS_SDXL,
            "align_your_steps_11": tables.AYS_SDXL,
            "align_your_steps_32": tables.AYS_SDXL_32,
            "align_your_steps_GITS": tables.AYS_GITS_SDXL,
        }.items()
    },
)
PROMPTS = a1111.PROMPTS._replace(
    engine="forge",
    source="Forge backend/text_processing/classic_engine.py, emphasis.py, parsing.py, textual_inversion.py",
)

# Sources: Forge backend/diffusion_engine/sd15.py, sd20.py, sdxl.py; backend/nn/unet.py, Upsample;
# backend/modules/k_prediction.py; modules/sd_samplers_kdiffusion.py; modules_forge/main_entry.py.
PICTURES = replace(
    a1111.PICTURES,
    name="forge",
    **cards(SAMPLING, PROMPTS),
    # It keeps 23 layers of SD 2's encoder and counts from those.
    clip_skips=("sd15", "sdxl"),
    unet_multiple=1,
    rounds_size_down=True,
    sampler="euler_a",
    samplers={name: name for name in (*a1111.SAMPLERS, "heunpp2", "ipndm", "ipndm_v")} | {"deis": "deis_tab"},
    schedules=SAMPLING.schedules,
    sdxl_schedules=SAMPLING.of_sdxl_tables,
)

CARD = EngineCard("forge", SAMPLING, PROMPTS, PICTURES)
