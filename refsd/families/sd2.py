"""Stable Diffusion 2.x: a UNet conditioned on OpenCLIP H's penultimate hidden states; may predict v."""

from collections.abc import Mapping

from refsd.families.family import Family
from refsd.families.sd1 import SD1, TINY_TINY_SD
from refsd.families.text_encoders import OPEN_CLIP
from refsd.families.unets import (
    NARROW_VAE,
    UNET,
    context_channels,
    is_linear,
    kind_of,
    label_channels,
    unet_alone,
    with_extra_channels,
)
from refsd.models.clip.network import CLIP_H, CLIPSize
from refsd.models.clip.openclip_names import OpenCLIP
from refsd.models.unet.tensors import SD21, SDXS_09, UNetSize
from refsd.networks.dimensions import Shape
from refsd.networks.recipe import RecipeModel, RecipePart

# Channels of the context. They distinguish stable-diffusion-2-1-unclip, whose label_emb takes an image embedding,
# from SDXL, whose context is wider.
CONTEXT = 1024


def identify(shapes: Mapping[str, Shape]) -> tuple[str, str] | None:
    label = label_channels(shapes)
    if label and context_channels(shapes) == CONTEXT:
        return "sd2-unclip", f"label_emb of {label} channels, a text of {CONTEXT}"
    if label or not is_linear(shapes):
        return None
    return f"sd2{kind_of(shapes)}", "its transformers' proj_in are linear, and there is no label_emb"


SD2 = SD1._replace(
    name="sd2",
    title="Stable Diffusion 2.x",
    encoders={"clip": OPEN_CLIP._replace(short_in_folders=True)},
    clip_layer=2,
    may_predict_v=True,
)
UNCLIP = SD2._replace(name="sd2-unclip", title="Stable Diffusion 2.1 unCLIP", draws=False)

# As deep as OpenCLIP's H (the depth identifies the encoder), and as wide as the tiny UNet's context.
_TINY_H = CLIPSize(hidden=32, layers=24, mlp=64, projection=16)
RECIPES = {
    "sd21": RecipeModel(
        {
            "unet": RecipePart(SD21, UNetSize(64, (64, 64, 64, 64), context_dim=32, linear=True), UNET),
            "vae": NARROW_VAE,
            "clip": RecipePart(CLIP_H, _TINY_H, "cond_stage_model.model.", lambda size: OpenCLIP(size.layers)),
        },
        "sd2",
    ),
    "sdxs-09": unet_alone(
        SDXS_09,
        TINY_TINY_SD._replace(channels=64, widths=(64, 128, 128), linear=True, cross_only=(0,)),
        "sd2",
        gaps=True,
    ),
}

FAMILIES = (
    Family(
        "sd2",
        "2022-11",
        "unet",
        identify,
        (*with_extra_channels(SD2, drawn=("inpaint",)), UNCLIP),
        {"Stable Diffusion 2.x": {"unet": SD21, "clip": CLIP_H}},
        RECIPES,
    ),
)
