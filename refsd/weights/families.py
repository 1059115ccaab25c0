"""Which model the components of a checkpoint make, and by what that is told."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from refsd.weights.architecture import Shape

Shapes = Mapping[str, Shape]


class Family(NamedTuple):
    """
    name:  "sd15"
    title: "Stable Diffusion 1.x"
    why:   by what it is told
    """

    name: str
    title: str
    why: str


def family_of(shapes: Mapping[str, Shapes]) -> Family:
    """The denoiser's family; without a denoiser, what is there.

    shapes: component -> name -> shape; at least one component
    """
    for component, told in _TOLD.items():
        if component in shapes:
            return told(shapes[component])
    names = " and ".join(shapes)
    return Family("parts", f"no denoiser, but {names}", "the names of its tensors")


def latents_of(family: str) -> str:
    """The name in models.vae.LATENT_SCALES under which a family's latents are scaled; another if there is none."""
    kind = family.partition("-")[0]
    return {"sd15": "sd1", "sd21": "sd2", "sd35": "sd3"}.get(kind, kind)


def _unet(shapes: Shapes) -> Family:
    label = _dim(shapes, "label_emb.0.0.weight", 1)
    changed = {9: "-inpaint", 8: "-edit"}.get(_dim(shapes, "input_blocks.0.0.weight", 1), "")
    linear = any(len(shape) == 2 for name, shape in shapes.items() if name.endswith("proj_in.weight"))
    if label == 2560:
        return Family("sdxl-refiner", "SDXL's refiner", "its label_emb takes 2560 channels")
    if label and _context(shapes) == 1024:
        return Family("sd2-unclip", "Stable Diffusion 2.1 unCLIP", f"label_emb of {label} channels, a text of 1024")
    if label:
        return Family(f"sdxl{changed}", f"SDXL{_WORDS[changed]}", f"its UNet has label_emb, of {label} channels")
    if linear:
        why = "its transformers' proj_in are linear, and there is no label_emb"
        return Family(f"sd2{changed}", f"Stable Diffusion 2.x{_WORDS[changed]}", why)
    why = "its transformers' proj_in are convolutions"
    return Family(f"sd15{changed}", f"Stable Diffusion 1.x{_WORDS[changed]}", why)


def _context(shapes: Shapes) -> int:
    return next((_dim(shapes, name, 1) for name in shapes if name.endswith("attn2.to_k.weight")), 0)


_WORDS = {"": "", "-inpaint": " for inpainting", "-edit": " for edits by instruction"}


def _flux(shapes: Shapes) -> Family:
    channels = _dim(shapes, "img_in.weight", 1)
    if channels == 384:
        return Family("flux-fill", "FLUX.1 Fill", "img_in takes 384 channels")
    if channels == 128:
        return Family("flux-control", "FLUX.1 Canny or Depth", "img_in takes 128 channels")
    if "guidance_in.in_layer.weight" in shapes:
        return Family("flux-dev", "FLUX.1 dev or Kontext", "it embeds a guidance")
    return Family("flux-schnell", "FLUX.1 schnell", "it embeds no guidance")


def _mmdit(shapes: Shapes) -> Family:
    if any(".attn2." in name for name in shapes):
        return Family("sd35-medium", "Stable Diffusion 3.5 medium", "its picture has a second attention")
    if any(".ln_q." in name for name in shapes):
        return Family("sd35-large", "Stable Diffusion 3.5 large", "its queries and keys are normed")
    return Family("sd3", "Stable Diffusion 3", "its queries and keys are not normed")


def _chroma(_: Shapes) -> Family:
    return Family("chroma", "Chroma", "it has a distilled_guidance_layer")


def _radiance(_: Shapes) -> Family:
    return Family("chroma-radiance", "Chroma-Radiance", "its pixels are painted by fields (nerf_blocks)")


def _flux2(shapes: Shapes) -> Family:
    if "guidance_in.in_layer.weight" in shapes:
        return Family("flux2-dev", "FLUX.2 dev", "one modulation serves all blocks, and it embeds a guidance")
    return Family("flux2-klein", "FLUX.2 klein", "one modulation serves all blocks, and it embeds no guidance")


def _zimage(_: Shapes) -> Family:
    return Family("zimage", "Z-Image", "it has a cap_embedder")


_TOLD: dict[str, Callable[[Shapes], Family]] = {
    "unet": _unet,
    "flux": _flux,
    "mmdit": _mmdit,
    "chroma": _chroma,
    "chroma-radiance": _radiance,
    "flux2": _flux2,
    "zimage": _zimage,
}


def _dim(shapes: Shapes, name: str, axis: int) -> int:
    shape = shapes.get(name, ())
    return shape[axis] if axis < len(shape) else 0
