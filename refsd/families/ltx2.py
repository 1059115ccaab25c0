"""LTX-2 and LTX-2.3: videos with sound, conditioned on Gemma 3. Only the network: txt2img draws no videos."""

import math
from collections.abc import Mapping

from refsd.families.family import Family, Variant, only_hidden
from refsd.families.flow import ENGINES, Flow
from refsd.models.ltx2.network import LTX2, LTX23, PROMPTS
from refsd.networks.dimensions import Shape
from refsd.networks.recipe import alone
from refsd.samplers.schedules.flow import line_through


def identify(shapes: Mapping[str, Shape]) -> tuple[str, str]:
    if any(PROMPTS in name for name in shapes):
        return "ltx23", f"it has streams of a video and of its sound, and modulates their texts ({PROMPTS}*)"
    return "ltx2", "it has streams of a video and of its sound (audio_patchify_proj)"


def shift_by_tokens(tokens: int, steps: int) -> float:
    """Return exp(mu): mu is a line in the tokens of all frames through (1024, 0.95) and (4096, 2.05).

    Source: diffusers LTX2Pipeline.__call__, calculate_shift.
    """
    return math.exp(line_through(tokens, (1024, 0.95), (4096, 2.05)))


# The pipelines stretch the levels besides, so that the last is 0.1: the schedule ltx2 of refsd's stage of sigmas.
VARIANT = Variant(
    "ltx2",
    "LTX-2",
    {},
    only_hidden,  # diffusers LTX2Pipeline: the connectors' words
    {"sdcpp": "flow_uniform", "diffusers": "flow_uniform"},
    Flow(dict.fromkeys(ENGINES, shift_by_tokens)),
    steps=30,
    cfg_scale=3.0,
    draws=False,
)
# In full width, because that is where kernels differ.
_BLOCK = LTX23._replace(layers=1)
_TINY = LTX2._replace(hidden=256, audio_hidden=128, layers=2, channels=8, audio_channels=12, caption=128)
_TINY_23 = _TINY._replace(caption=0, gates=2, audio_gates=2, prompts=True)
FAMILIES = (
    Family(
        "ltx2",
        "2026-01",
        "ltx2",
        identify,
        (VARIANT, VARIANT._replace(name="ltx23", title="LTX-2.3")),
        sizes={"LTX-2": {"ltx2": LTX2}, "LTX-2.3": {"ltx2": LTX23}},
        recipes={
            "ltx2": alone("ltx2", LTX2, _TINY, "ltxv"),
            "ltx23": alone("ltx2", LTX23, _TINY_23, "ltxv"),
            "ltx23-block": alone("ltx2", _BLOCK, _BLOCK, "ltxv"),
        },
    ),
)
