"""Z-Image: Tongyi-MAI's transformer, conditioned on Qwen3's penultimate hidden states, with FLUX.1's latents."""

import numpy as np

from refsd.families.family import Condition, EncodedPrompt, Family, TextEncoder, Variant
from refsd.families.flow import Flow, constant_shift
from refsd.families.text_encoders import QWEN3, QWEN3_COMFYUI, QWEN3_SDCPP
from refsd.models.qwen3.network import QWEN3_4B
from refsd.models.zimage.network import ZIMAGE as SIZE
from refsd.models.zimage_controlnet.network import TINY_CONTROL, ZIMAGE_CONTROL_21, control_names
from refsd.networks.recipe import RecipeModel, RecipePart, alone
from refsd.samplers.levels import FlowLevels
from refsd.samplers.parameterization import Prediction


def join(prompt: EncodedPrompt) -> Condition:
    """Return the hidden states without the prompts' padding; zeros fill shorter prompts up to the longest.

    Source: diffusers ZImagePipeline._encode_prompt, which returns a list of arrays instead.
    """
    (encoded,) = prompt.encoders.values()
    hidden = encoded.hidden
    rows = [row[mask != 0] for row, mask in zip(hidden, encoded.mask, strict=True)]
    context = np.zeros((len(rows), max(map(len, rows)), hidden.shape[2]), hidden.dtype)
    mask = np.zeros(context.shape[:2], np.int64)
    for i, row in enumerate(rows):
        context[i, : len(row)] = row
        mask[i, : len(row)] = 1
    return Condition(context, mask=mask)


class TimeFromNoise(FlowLevels):
    """Noise levels of a network whose timestep is 1 - sigma: 0 is pure noise, 1 the image."""

    def to_t(self, sigma: float) -> float:
        return 1 - sigma


# The network predicts data - noise. Source: Tongyi-MAI/Z-Image, zimage/pipeline.py: noise_pred = -noise_pred.
TO_DATA = Prediction("to-data", lambda sigma: (1.0, sigma, 1.0))

ZIMAGE = Variant(
    "zimage",
    "Z-Image",
    {"qwen3": TextEncoder({"diffusers": QWEN3, "sdcpp": QWEN3_SDCPP, "comfyui": QWEN3_COMFYUI}, "penultimate")},
    join,
    {"sdcpp": "discrete", "diffusers": "flow_uniform", "comfyui": "simple"},
    Flow(constant_shift(3.0), levels=TimeFromNoise, prediction=TO_DATA),
    steps=9,
    cfg_scale=1.0,
    latent_format="flux",
    other_engines=("comfyui",),
)
_TINY = SIZE._replace(hidden=384, layers=2, mlp=1024, context_dim=128)
FAMILIES = (
    Family(
        "zimage",
        "2025-11",
        "zimage",
        lambda shapes: ("zimage", "it has a cap_embedder"),
        (ZIMAGE,),
        {"Z-Image": {"zimage": SIZE, "qwen3": QWEN3_4B}},
        {
            "zimage": alone("zimage", SIZE, _TINY, "lumina2"),
            "zimage-control": RecipeModel(
                {
                    "zimage": RecipePart(SIZE, _TINY._replace(layers=4), "model.diffusion_model."),
                    "zimage-controlnet": RecipePart(
                        ZIMAGE_CONTROL_21, TINY_CONTROL, "control_model.", control_names
                    ),
                },
                "lumina2",
            ),
        },
    ),
)
