"""MiniMax-H3: videos with sound, conditioned on Qwen3-VL. Only the network: txt2img draws no videos."""

from refsd.families.family import Family, Variant, only_hidden
from refsd.families.flow import Flow, constant_shift
from refsd.families.zimage import TO_DATA, TimeFromNoise
from refsd.models.minimax_h3.network import MINIMAX_H3, PRUNED
from refsd.networks.recipe import alone

# The sound has a shift of its own, 3. diffusers counts the last level, 0, among its 50 steps.
VARIANT = Variant(
    "minimax-h3",
    "MiniMax-H3",
    {},
    only_hidden,  # diffusers modular_pipelines/minimax_h3/encoders.py
    {"sdcpp": "flow_uniform", "diffusers": "flow_uniform"},
    Flow(constant_shift(12.0), levels=TimeFromNoise, prediction=TO_DATA),
    steps=49,
    cfg_scale=1.0,
    draws=False,
)
# In full width, because that is where kernels differ.
_BLOCK = MINIMAX_H3._replace(layers=1, refiners=1)
_TINY = MINIMAX_H3._replace(
    hidden=192,
    layers=2,
    heads=2,
    mlp=160,
    channels=8,
    audio_channels=12,
    context_dim=128,
    time_hidden=96,
    time_dim=64,
)
_TINY_PRUNED = _TINY._replace(time_dim=PRUNED.time_dim, curve=17)
FAMILIES = (
    Family(
        "minimax-h3",
        "2026-07",
        "minimax-h3",
        lambda shapes: ("minimax-h3", "it has tokens of a sound beside those of a video (audio_patch_proj)"),
        (VARIANT,),
        sizes={"MiniMax-H3": {"minimax-h3": MINIMAX_H3}, "MiniMax-H3, pruned": {"minimax-h3": PRUNED}},
        recipes={
            "minimax-h3": alone("minimax-h3", MINIMAX_H3, _TINY, "minimax_h3"),
            "minimax-h3-pruned": alone("minimax-h3", PRUNED, _TINY_PRUNED, "minimax_h3"),
            "minimax-h3-block": alone("minimax-h3", _BLOCK, _BLOCK, "minimax_h3"),
        },
    ),
)
