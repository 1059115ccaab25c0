"""SDXL and its refiner: a UNet conditioned on penultimate hidden states of CLIP-L and bigG, and on image sizes."""

from collections.abc import Mapping

import numpy as np

from refsd.families.family import Condition, EncodedPrompt, Family
from refsd.families.sd1 import SD1
from refsd.families.sd2 import CONTEXT as SD2_CONTEXT
from refsd.families.text_encoders import CLIP_L, OPEN_CLIP, side_by_side
from refsd.families.unets import (
    NARROW_VAE,
    UNET,
    context_channels,
    kind_of,
    label_channels,
    unet_alone,
    with_extra_channels,
)
from refsd.models.clip.network import CLIP_G, CLIPSize
from refsd.models.clip.network import CLIP_L as CLIP_L_SIZE
from refsd.models.clip.openclip_names import OpenCLIP
from refsd.models.unet import size_condition
from refsd.models.unet.tensors import SDXL as SDXL_SIZE
from refsd.models.unet.tensors import SDXL_INPAINT, SSD_1B, VEGA
from refsd.module import Module
from refsd.networks.dimensions import Shape
from refsd.networks.recipe import RecipeModel, RecipePart

REFINER_LABEL = 2560
# The refiner's aesthetic scores: with the prompt, with the negative prompt.
AESTHETIC = 6.0, 2.5


def identify(shapes: Mapping[str, Shape]) -> tuple[str, str] | None:
    label = label_channels(shapes)
    if label == REFINER_LABEL:
        return "sdxl-refiner", f"its label_emb takes {label} channels"
    if not label or context_channels(shapes) == SD2_CONTEXT:
        return None
    return f"sdxl{kind_of(shapes)}", f"its UNet has label_emb, of {label} channels"


def join(prompt: EncodedPrompt) -> Condition:
    """Concatenate CLIP-L's and bigG's hidden states on channels; y: bigG's pooled text and the sizes.

    In most engines an empty negative prompt becomes zeros: its hidden states, in some also its pooled text.

    Source: Podell et al. 2023, section 2; diffusers StableDiffusionXLPipeline.encode_prompt,
            zero_out_negative_prompt; stable-diffusion.cpp zero_out_masked.
    """
    pooled = prompt.encoders["clip_g"].pooled
    context = side_by_side(prompt.encoders["clip"].hidden, prompt.encoders["clip_g"].hidden)
    if prompt.negative and prompt.empty and prompt.convention.zeros_empty:
        context = np.zeros_like(context)
        pooled = np.zeros_like(pooled) if prompt.convention.zeros_pooled else pooled
    sizes = np.array([[*(prompt.original or prompt.size), *prompt.crop, *prompt.size]] * len(context))
    return Condition(context, with_sizes(prompt.network, pooled, sizes))


def join_refiner(prompt: EncodedPrompt) -> Condition:
    """Return bigG's hidden states; y: its pooled text, the sizes and the aesthetic score."""
    context, pooled = prompt.encoders["clip_g"].hidden, prompt.encoders["clip_g"].pooled
    own = *(prompt.original or prompt.size), *prompt.crop, AESTHETIC[prompt.negative]
    sizes = np.array([own] * len(context))
    if prompt.negative and prompt.empty and prompt.convention.zeros_refiner:
        context = np.zeros_like(context)
    return Condition(context, with_sizes(prompt.network, pooled, sizes))


def with_sizes(m: Module, pooled, sizes):
    """Return y. The sizes share what label_emb takes beside the pooled text: 256 channels each, as released."""
    label = m.shape("label_emb.0.0.weight")[1] if "label_emb" in m else 0
    channels, left = divmod(label - pooled.shape[1], sizes.shape[1])
    return size_condition(m, pooled, sizes, channels if channels > 0 and not left else 256)


SDXL = SD1._replace(
    name="sdxl",
    title="SDXL",
    encoders={"clip": CLIP_L, "clip_g": OPEN_CLIP},
    join=join,
    clip_layer=2,
    final_norm=False,
    weighted_together=True,
    latent_format="sdxl",
    corrects_scheduler=False,
)
REFINER = SDXL._replace(
    name="sdxl-refiner", title="SDXL's refiner", encoders={"clip_g": OPEN_CLIP}, join=join_refiner
)

_TINY = SDXL_SIZE._replace(
    channels=32,
    widths=(32, 64, 64),
    res_blocks=1,
    context_dim=32,
    label=16 + 6 * 256,
    down=((0,), (1,), (2,)),
    middle=2,
)
_EMBEDDERS = "conditioner.embedders."
# Their widths add up to the tiny UNet's context. The depth identifies OpenCLIP's encoders.
TINY_CLIP = CLIPSize(hidden=16, layers=2, mlp=32)
TINY_BIGG = CLIPSize(hidden=16, layers=32, mlp=32, projection=16)
RECIPES = {
    "sdxl": RecipeModel(
        {
            "unet": RecipePart(SDXL_SIZE, _TINY, UNET),
            "vae": NARROW_VAE,
            "clip": RecipePart(CLIP_L_SIZE, TINY_CLIP, f"{_EMBEDDERS}0.transformer."),
            "clip_g": RecipePart(CLIP_G, TINY_BIGG, f"{_EMBEDDERS}1.model.", lambda size: OpenCLIP(size.layers)),
        },
        "sdxl",
    ),
    "sdxl-inpaint": unet_alone(SDXL_INPAINT, _TINY._replace(in_channels=9), "sdxl"),
    "ssd-1b": unet_alone(SSD_1B, _TINY._replace(middle=0, up=((0, 0), (1, 2), (2, 1))), "sdxl"),
    "vega": unet_alone(VEGA, _TINY._replace(middle=0), "sdxl"),
}

FAMILIES = (
    Family(
        "sdxl",
        "2023-07",
        "unet",
        identify,
        (*with_extra_channels(SDXL, drawn=("inpaint", "edit")), REFINER),
        {"SDXL": {"unet": SDXL_SIZE, "clip": CLIP_L_SIZE, "clip_g": CLIP_G}},
        RECIPES,
    ),
)
