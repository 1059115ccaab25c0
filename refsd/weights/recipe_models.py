"""The models that recipe weights can be made of: their parts, full and tiny, under the names of the real files."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from refsd.golden.case import ModelRecipe
from refsd.golden.errors import BadInput
from refsd.golden.tensor import SCALAR_TYPES, StoredTensor
from refsd.weights.architecture import (
    CLIP_G,
    CLIP_H,
    CLIP_L,
    FLUX_VAE,
    PIX2PIX,
    SD15,
    SD15_INPAINT,
    SD21,
    SDXL,
    SDXL_INPAINT,
    SDXS_09,
    SDXS_512,
    SSD_1B,
    TINY_SD,
    VEGA,
    CLIPSize,
    UNetSize,
    VAESize,
)
from refsd.weights.architecture_chroma import CHROMA, ChromaSize
from refsd.weights.architecture_controlnet import CONTROLNET_SD15, ControlNetSize
from refsd.weights.architecture_esrgan import ESRGAN_X4
from refsd.weights.architecture_flux import FLUX_CONTROL, FLUX_DEV, FLUX_FILL, FLUX_SCHNELL, FluxSize
from refsd.weights.architecture_flux2 import FLUX2_DEV, FLUX2_KLEIN_4B, Flux2Size, Flux2VAESize, MistralSize
from refsd.weights.architecture_mmdit import SD3_MEDIUM, SD35_LARGE, SD35_MEDIUM, MMDiTSize
from refsd.weights.architecture_radiance import RADIANCE, RADIANCE_X0_32, RadianceSize
from refsd.weights.architecture_taesd import TAEF1, TAEF2, TAESD, TAESDSize
from refsd.weights.architecture_text import QWEN3_4B, T5_XXL, Qwen3Size, T5Size
from refsd.weights.architecture_zimage import ZIMAGE
from refsd.weights.architectures import ARCHITECTURES
from refsd.weights.keymaps import Keymap
from refsd.weights.keymaps_flux2 import mistral_gguf
from refsd.weights.keymaps_openclip import OpenCLIP
from refsd.weights.keymaps_taesd import taesd
from refsd.weights.keymaps_tiny_unet import tiny_unet


class Part(NamedTuple):
    """A component in a model's file.

    full, tiny: sizes of its architecture
    prefix:     what stands before every name
    keymap:     ours <-> what the file has behind the prefix, where these differ
    """

    full: Any
    tiny: Any
    prefix: str = ""
    keymap: Callable[[Any], Keymap] | None = None


class Model(NamedTuple):
    """
    parts: component -> Part, in the order of the file
    gguf:  what a GGUF file calls the architecture
    """

    parts: dict[str, Part]
    gguf: str


def _openclip(size: CLIPSize) -> Keymap:
    return OpenCLIP(size.layers)


def _diffusers_tae(size: TAESDSize) -> Keymap:
    """The one file that holds both halves is diffusers'."""
    return taesd()


def _gapped(size: UNetSize) -> Keymap:
    return tiny_unet(len(size.channel_mult), size.attention)


def _mistral_gguf(size: MistralSize) -> Keymap:
    """llama.cpp's names and its order of a head's channels: stable-diffusion.cpp knows no other."""
    return mistral_gguf(size.layers, size.head_dim)


_UNET, _VAE, _EMBEDDERS = "model.diffusion_model.", "first_stage_model.", "conditioner.embedders."
_TINY_CLIP = CLIPSize(hidden=128, layers=2, mlp=512)
# OpenCLIP's encoders are told by their depth. Those beside a UNet know every token, and are as wide as its context.
_TINY_H = CLIPSize(hidden=128, layers=24, mlp=128, vocab=1000, projection=64)
_TINY_BIGG = _TINY_H._replace(layers=32)
_THIN_CLIP = CLIPSize(hidden=16, layers=2, mlp=32)
_THIN_H = CLIPSize(hidden=32, layers=24, mlp=64, projection=16)
_THIN_BIGG = CLIPSize(hidden=16, layers=32, mlp=32, projection=16)
_TINY_VAE = VAESize(channels=32)
_TINY_FLUX = FluxSize(hidden=256, double_blocks=1, single_blocks=2, mlp=1024)
_TINY_CHROMA = ChromaSize(256, 1, 2, mlp=1024, context_dim=128, width=64, layers=2)
_TINY_FLUX2 = Flux2Size(256, 1, 2, mlp=768, context_dim=128)
_TINY_SD1 = UNetSize(channels=32, context_dim=128)
_SMALL_TINY_SD = TINY_SD._replace(channels=32, channel_mult=(1, 2, 2), context_dim=128)
_TINY_SD2 = UNetSize(channels=64, channel_mult=(1, 1, 1, 1), context_dim=32, linear=True)
_TINY_SDXL = SDXL._replace(
    channels=32,
    channel_mult=(1, 2, 2),
    res_blocks=1,
    context_dim=32,
    label=16 + 6 * 256,
    down=((0,), (1,), (2,)),
    middle=2,
)
_NARROW_VAE = VAESize(channels=32, channel_mult=(1, 1, 1, 1))
_TINY_MMDIT = MMDiTSize(hidden=128, blocks=2, mlp=512, table=16, context_dim=128, pooled=96)


def _alone(component: str, full: Any, tiny: Any, gguf: str) -> Model:
    """A file of one network, under its own names."""
    return Model({component: Part(full, tiny)}, gguf)


def _unet(full: UNetSize, tiny: UNetSize, gguf: str, keymap: Callable[[Any], Keymap] | None = None) -> Model:
    """A UNet alone, under the names that it has in a checkpoint."""
    return Model({"unet": Part(full, tiny, _UNET, keymap)}, gguf)


# family -> what `refsd weights make` writes; one part alone where the real file holds no more
MODELS: dict[str, Model] = {
    "sd15": Model(
        {
            "unet": Part(SD15, _TINY_SD1, _UNET),
            "vae": Part(VAESize(), _TINY_VAE, _VAE),
            "clip": Part(CLIPSize(), _TINY_CLIP, "cond_stage_model.transformer."),
        },
        "sd1",
    ),
    "sd21": Model(
        {
            "unet": Part(SD21, _TINY_SD2, _UNET),
            "vae": Part(VAESize(), _NARROW_VAE, _VAE),
            "clip": Part(CLIP_H, _THIN_H, "cond_stage_model.model.", _openclip),
        },
        "sd2",
    ),
    "sdxl": Model(
        {
            "unet": Part(SDXL, _TINY_SDXL, _UNET),
            "vae": Part(VAESize(), _NARROW_VAE, _VAE),
            "clip": Part(CLIPSize(), _THIN_CLIP, f"{_EMBEDDERS}0.transformer."),
            "clip_g": Part(CLIP_G, _THIN_BIGG, f"{_EMBEDDERS}1.model.", _openclip),
        },
        "sdxl",
    ),
    "sd15-inpaint": _unet(SD15_INPAINT, _TINY_SD1._replace(in_channels=9), "sd1"),
    "pix2pix": _unet(PIX2PIX, _TINY_SD1._replace(in_channels=8), "sd1"),
    "sd15-control": Model(
        {
            "unet": Part(SD15, _TINY_SD1, _UNET),
            "controlnet": Part(CONTROLNET_SD15, ControlNetSize(_TINY_SD1), "control_model."),
        },
        "sd1",
    ),
    "tiny-sd": _unet(TINY_SD, _SMALL_TINY_SD, "sd1", _gapped),
    "sdxs-512": _unet(SDXS_512, _SMALL_TINY_SD._replace(attention=(1, 2)), "sd1", _gapped),
    "sdxs-09": _unet(
        SDXS_09,
        _SMALL_TINY_SD._replace(channels=64, linear=True, cross_only=(0,)),
        "sd2",
        _gapped,
    ),
    "sdxl-inpaint": _unet(SDXL_INPAINT, _TINY_SDXL._replace(in_channels=9), "sdxl"),
    "ssd-1b": _unet(
        SSD_1B,
        _TINY_SDXL._replace(middle=0, up=((0, 0), (1, 2), (2, 1))),
        "sdxl",
    ),
    "vega": _unet(VEGA, _TINY_SDXL._replace(middle=0), "sdxl"),
    "sd3-medium": _alone("mmdit", SD3_MEDIUM, _TINY_MMDIT, "sd3"),
    "sd35-medium": _alone("mmdit", SD35_MEDIUM, _TINY_MMDIT._replace(qk_norm=64, dual=(0,)), "sd3"),
    "sd35-large": _alone("mmdit", SD35_LARGE, _TINY_MMDIT._replace(qk_norm=64), "sd3"),
    "flux-dev": _alone("flux", FLUX_DEV, _TINY_FLUX, "flux"),
    "flux-schnell": _alone("flux", FLUX_SCHNELL, _TINY_FLUX._replace(guidance=False), "flux"),
    "flux-fill": _alone("flux", FLUX_FILL, _TINY_FLUX._replace(in_channels=384), "flux"),
    "flux-control": _alone("flux", FLUX_CONTROL, _TINY_FLUX._replace(in_channels=128), "flux"),
    "chroma": _alone("chroma", CHROMA, _TINY_CHROMA, "flux"),
    "chroma-radiance": _alone(
        "chroma-radiance", RADIANCE, RadianceSize(_TINY_CHROMA, patch=8, field=16, depth=2), "flux"
    ),
    "flux2-dev": _alone("flux2", FLUX2_DEV, _TINY_FLUX2, "flux2"),
    "flux2-klein": _alone("flux2", FLUX2_KLEIN_4B, _TINY_FLUX2._replace(guidance=False), "flux2"),
    "zimage": _alone("zimage", ZIMAGE, ZIMAGE._replace(hidden=384, layers=2, mlp=1024, context_dim=128), "lumina2"),
    "clip-l": _alone("clip", CLIP_L, _TINY_CLIP._replace(vocab=1000), "clip"),
    "clip-h": _alone("clip", CLIP_H, _TINY_H, "clip"),
    "clip-g": _alone("clip_g", CLIP_G, _TINY_BIGG, "clip"),
    "t5xxl": _alone("t5", T5_XXL, T5Size(128, 2, 2, mlp=256, vocab=1000), "t5encoder"),
    "qwen3-4b": _alone("qwen3", QWEN3_4B, Qwen3Size(128, 3, 6, 2, mlp=256, vocab=1000), "qwen3"),
    "mistral-small": _alone("mistral", MistralSize(), MistralSize(128, 3, 6, 2, mlp=256, vocab=1000), "llama"),
    "flux-vae": _alone("vae", FLUX_VAE, _TINY_VAE._replace(latent_channels=16, quant_convs=False), "vae"),
    "flux2-vae": _alone("flux2-vae", Flux2VAESize(), Flux2VAESize(channels=32, decoder_channels=32), "vae"),
    "taesd": Model({"tae": Part(TAESD, TAESD, keymap=_diffusers_tae)}, "taesd"),
    "taef1": Model({"tae": Part(TAEF1, TAEF1, keymap=_diffusers_tae)}, "taesd"),
    "taef2": Model({"tae": Part(TAEF2, TAEF2, keymap=_diffusers_tae)}, "taesd"),
    "controlnet": _alone("controlnet", CONTROLNET_SD15, ControlNetSize(_TINY_SD1), "controlnet"),
    "esrgan": _alone("esrgan", ESRGAN_X4, ESRGAN_X4._replace(blocks=1), "esrgan"),
}

# Of a language model: more layers than a denoiser's context is taken from.
_NARROW_QWEN3 = Qwen3Size(64, 36, mlp=192, vocab=1000)
_NARROW_MISTRAL = MistralSize(64, 31, mlp=192, vocab=1000)
_NARROW_CHROMA = CHROMA._replace(hidden=256, mlp=1024)

# What cases ask for besides: as deep as what is released, and narrow, for engines that take no other depth
NARROW: dict[str, Model] = {
    f"{family}-narrow": _alone(component, size, size, gguf)
    for family, component, size, gguf in (
        ("chroma", "chroma", _NARROW_CHROMA, "flux"),
        ("chroma-radiance", "chroma-radiance", RadianceSize(_NARROW_CHROMA), "flux"),
        ("chroma-radiance-x0", "chroma-radiance", RADIANCE_X0_32._replace(chroma=_NARROW_CHROMA), "flux"),
        ("sd35-large", "mmdit", SD35_LARGE._replace(hidden=1536, blocks=24, mlp=6144), "sd3"),
        ("flux2-dev", "flux2", FLUX2_DEV._replace(hidden=256, mlp=768, context_dim=128), "flux2"),
    )
}
NARROW["qwen3-narrow"] = _alone("qwen3", _NARROW_QWEN3, _NARROW_QWEN3, "qwen3")
NARROW["mistral-narrow"] = Model({"mistral": Part(_NARROW_MISTRAL, _NARROW_MISTRAL, keymap=_mistral_gguf)}, "llama")


def model(recipe: ModelRecipe) -> Model:
    """Raises BadInput for an unknown family."""
    found = MODELS.get(recipe.family) or NARROW.get(recipe.family)
    if found is None:
        raise BadInput(f"no recipe for family {recipe.family!r}; there are {', '.join([*MODELS, *NARROW])}")
    return found


def part_shapes(component: str, part: Part, tiny: bool) -> dict[str, tuple[int, ...]]:
    """Name in the file, with its prefix -> shape."""
    size = part.tiny if tiny else part.full
    ours = ARCHITECTURES[component].shapes(size)
    if part.keymap is None:
        return {part.prefix + name: shape for name, shape in ours.items()}
    theirs = part.keymap(size).write({name: _hollow(shape) for name, shape in ours.items()})
    return {part.prefix + name: tensor.shape for name, tensor in theirs.items()}


def _hollow(shape: tuple[int, ...]) -> StoredTensor:
    """A tensor that has a shape and hardly any memory."""
    return StoredTensor("f32", shape, np.broadcast_to(np.zeros((), SCALAR_TYPES["f32"]), shape))
