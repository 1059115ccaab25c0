"""What the UNets of Stable Diffusion 1.x, 2.x and SDXL share: recognition by shapes, and variants."""

from collections.abc import Mapping

from refsd.families.family import Variant
from refsd.models.unet.tensors import UNetSize
from refsd.models.unet.tiny_names import tiny_unet_keymap
from refsd.models.vae.network import VAESize
from refsd.networks.dimensions import Shape, dim
from refsd.networks.recipe import RecipeModel, RecipePart, alone

SCHEDULE = {"sdcpp": "discrete", "diffusers": "leading"}

# Prefixes of components in a whole checkpoint.
UNET = "model.diffusion_model."
NARROW_VAE = RecipePart(VAESize(), VAESize(32, (32, 32, 32, 32)), "first_stage_model.")

# Input channels of the first convolution -> kind of variant.
_KINDS = {9: "inpaint", 8: "edit", 7: "upscale", 5: "depth"}
_WORDS = {
    "inpaint": "for inpainting",
    "edit": "for edits by instruction",
    "upscale": "for enlarging a picture",
    "depth": "by depth",
}


def kind_of(shapes: Mapping[str, Shape]) -> str:
    """Return the suffix of the variant's name, as "-inpaint"; "" for the plain model."""
    channels = dim(shapes, "input_blocks.0.0.weight", 1, 0)
    return f"-{_KINDS[channels]}" if channels in _KINDS else ""


def label_channels(shapes: Mapping[str, Shape]) -> int:
    """Return the input channels of label_emb; 0: there is none."""
    return dim(shapes, "label_emb.0.0.weight", 1, 0)


def context_channels(shapes: Mapping[str, Shape]) -> int:
    return next((dim(shapes, name, 1, 0) for name in shapes if name.endswith("attn2.to_k.weight")), 0)


def is_linear(shapes: Mapping[str, Shape]) -> bool:
    """True if the transformers' proj_in are linear layers, False if convolutions."""
    return any(len(shape) == 2 for name, shape in shapes.items() if name.endswith("proj_in.weight"))


def with_extra_channels(plain: Variant, drawn: tuple[str, ...]) -> tuple[Variant, ...]:
    """Return a variant and its kinds with more input channels. drawn: kinds that txt2img supports"""
    kinds = [
        plain._replace(
            name=f"{plain.name}-{kind}",
            title=f"{plain.title} {words}",
            extra_channels=kind,
            draws=kind in drawn,
            corrects_scheduler=plain.corrects_scheduler and kind != "edit",
        )
        for kind, words in _WORDS.items()
    ]
    return plain, *kinds


def unet_alone(full: UNetSize, tiny: UNetSize, gguf: str, gaps: bool = False) -> RecipeModel:
    """Return a recipe model of a UNet alone, under its names in a checkpoint.

    gaps: True if its block numbers skip, as in tiny_unet_names
    """

    def keymap(size: UNetSize):
        return tiny_unet_keymap(len(size.widths), size.attention)

    return alone("unet", full, tiny, gguf, UNET, keymap if gaps else None)
