"""FLUX.3 klein, base and distilled: conditioned on eight hidden states of Qwen3-VL, with FLUX.2's autoencoder."""

from collections.abc import Mapping

from refsd.families.editing import whole_or_cut
from refsd.families.family import Family, TextEncoder, Variant, only_hidden
from refsd.families.flow import ENGINES, Flow, constant_shift, unit_time
from refsd.families.text_encoders import ASSISTANT, USER
from refsd.models.flux3 import CONTEXT_LAYERS
from refsd.models.flux3.network import FLUX3_DISTILLED, FLUX3_KLEIN, TARGET_TIME
from refsd.networks.dimensions import Shape
from refsd.networks.recipe import alone
from refsd.tokenizers.text_rules import TextRule, cut_off, places_with_padding_at_1

# The padding is masked in Qwen3-VL and seen in the transformer.
RULE = TextRule(
    8192,
    cut_off,
    mask=True,
    around=(USER, ASSISTANT),
    fill=False,
    multiple=80,
    positions=places_with_padding_at_1,
    source="diffusers modular_pipelines/flux3, Flux3TextEncoderStep",
)


def identify(shapes: Mapping[str, Shape]) -> tuple[str, str]:
    if TARGET_TIME in shapes:
        return "flux3-distilled", "it has modulations of three modes, and embeds the time at which a step ends"
    return "flux3", "it has modulations of three modes"


# The released stable-diffusion.cpp has no FLUX.3; its command line's conventions take diffusers' text and shift.
KLEIN = Variant(
    "flux3",
    "FLUX.3 klein",
    {"qwen3_vl": TextEncoder({"diffusers": RULE, "sdcpp": RULE}, "hidden_states", layers=CONTEXT_LAYERS)},
    only_hidden,
    {"sdcpp": "flow_uniform", "diffusers": "flow_uniform"},
    Flow(constant_shift(6.93), levels=unit_time),
    steps=50,
    cfg_scale=3.5,
    latent_format="flux2",
    references=dict.fromkeys(ENGINES, whole_or_cut),
)
DISTILLED = KLEIN._replace(name="flux3-distilled", title="FLUX.3 klein (distilled)", steps=16, cfg_scale=1.0)
_TINY = FLUX3_KLEIN._replace(hidden=256, mode_blocks=1, single_blocks=2, mlp=512, context_dim=128)
FAMILIES = (
    Family(
        "flux3",
        "2026-11",
        "flux3",
        identify,
        (KLEIN, DISTILLED),
        sizes={"FLUX.3 klein": {"flux3": FLUX3_KLEIN}, "FLUX.3 klein distilled": {"flux3": FLUX3_DISTILLED}},
        recipes={
            "flux3": alone("flux3", FLUX3_KLEIN, _TINY, "flux3"),
            "flux3-distilled": alone("flux3", FLUX3_DISTILLED, _TINY._replace(target_time=True), "flux3"),
        },
    ),
)
