"""Ideogram 4: a transformer conditioned on thirteen hidden states of Qwen3-VL 8B, with FLUX.2's autoencoder.

Only the network: txt2img does not draw it. A call without a prompt has weights of its own, in a second file.
"""

from refsd.families.family import Family, Flow, Variant, constant_shift, only_hidden
from refsd.families.zimage import TO_DATA, TimeFromNoise
from refsd.models.ideogram4.network import IDEOGRAM4 as SIZE
from refsd.networks.recipe import alone

# Its own levels are those of a logit-normal distribution, and the scale of the guidance changes with the step:
# neither is computed here, so it has no schedule.
IDEOGRAM4 = Variant(
    "ideogram4",
    "Ideogram 4",
    {},
    only_hidden,  # diffusers modular_pipelines/ideogram4/encoders.py
    {},
    Flow(constant_shift(1.0), levels=TimeFromNoise, prediction=TO_DATA),
    steps=48,
    cfg_scale=7.0,
    latent_format="flux2",
    draws=False,
)
_TINY = SIZE._replace(hidden=512, layers=2, mlp=384, channels=16, knobs=64, context_dim=128)
FAMILIES = (
    Family(
        "ideogram4",
        "2026-06",
        "ideogram4",
        lambda shapes: ("ideogram4", "it embeds whether a token is the picture's (embed_image_indicator)"),
        (IDEOGRAM4,),
        sizes={"Ideogram 4": {"ideogram4": SIZE}},
        recipes={"ideogram4": alone("ideogram4", SIZE, _TINY, "ideogram4")},
    ),
)
