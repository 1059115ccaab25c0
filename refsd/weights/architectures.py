"""What refsd knows of each network: how its size is read from shapes, and every tensor of that size.

A component of a checkpoint is called as its network; two may share one, as CLIP-L and bigG do.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from refsd.weights.architecture import Shapes, clip_shapes, unet_shapes, vae_shapes
from refsd.weights.architecture_chroma import chroma_shapes, chroma_size
from refsd.weights.architecture_controlnet import controlnet_shapes, controlnet_size
from refsd.weights.architecture_esrgan import esrgan_shapes, esrgan_size
from refsd.weights.architecture_flux import flux_shapes, flux_size
from refsd.weights.architecture_flux2 import (
    flux2_shapes,
    flux2_size,
    flux2_vae_shapes,
    flux2_vae_size,
    mistral_shapes,
    mistral_size,
)
from refsd.weights.architecture_mmdit import mmdit_shapes, mmdit_size
from refsd.weights.architecture_radiance import radiance_shapes, radiance_size
from refsd.weights.architecture_taesd import taesd_shapes, taesd_size
from refsd.weights.architecture_text import qwen3_shapes, qwen3_size, t5_shapes, t5_size
from refsd.weights.architecture_zimage import zimage_shapes, zimage_size
from refsd.weights.sizes import clip_size, unet_size, vae_size


class Architecture(NamedTuple):
    """
    title:  for a person
    size:   name -> shape, of a file's tensors -> a NamedTuple; what is missing is as the family has it usually
    shapes: that NamedTuple -> every tensor, in the order of the original file
    unread: globs of names that the original's files may hold and its forward never reads
    """

    title: str
    size: Callable[[Shapes], Any]
    shapes: Callable[[Any], Shapes]
    unread: tuple[str, ...] = ()


# What a language model's files hold besides its layers.
_NO_TEXT = ("lm_head.*", "vision_tower.*", "model.vision_tower.*", "*multi_modal_projector.*", "output.weight")

ARCHITECTURES: dict[str, Architecture] = {
    "unet": Architecture("UNet", unet_size, unet_shapes),
    "mmdit": Architecture("MMDiT", mmdit_size, mmdit_shapes),
    "flux": Architecture("FLUX.1", flux_size, flux_shapes),
    "chroma": Architecture("Chroma", chroma_size, chroma_shapes),
    "chroma-radiance": Architecture("Chroma-Radiance", radiance_size, radiance_shapes),
    "flux2": Architecture("FLUX.2", flux2_size, flux2_shapes),
    "zimage": Architecture("Z-Image", zimage_size, zimage_shapes, ("norm_final.weight",)),
    "vae": Architecture("autoencoder", vae_size, vae_shapes),
    "flux2-vae": Architecture(
        "FLUX.2's autoencoder", flux2_vae_size, flux2_vae_shapes, ("bn.num_batches_tracked",)
    ),
    "tae": Architecture("tiny autoencoder", taesd_size, taesd_shapes),
    "controlnet": Architecture("ControlNet", controlnet_size, controlnet_shapes),
    "esrgan": Architecture("ESRGAN", esrgan_size, esrgan_shapes),
    "t5": Architecture("T5 encoder", t5_size, t5_shapes, ("encoder.embed_tokens.weight", "decoder.*", "lm_head.*")),
    "qwen3": Architecture("Qwen3", qwen3_size, qwen3_shapes, _NO_TEXT),
    "mistral": Architecture("Mistral", mistral_size, mistral_shapes, _NO_TEXT),
    "clip": Architecture("CLIP text encoder", clip_size, clip_shapes, ("text_projection.weight", "logit_scale")),
    "clip_g": Architecture("OpenCLIP bigG text encoder", clip_size, clip_shapes, ("logit_scale",)),
}
