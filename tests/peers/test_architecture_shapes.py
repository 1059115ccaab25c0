"""Full-size tables against what diffusers and transformers make of the published configurations, on no memory."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL
from diffusers.models.autoencoders.autoencoder_tiny import AutoencoderTiny
from diffusers.models.controlnets.controlnet import ControlNetModel
from diffusers.models.transformers.transformer_chroma import ChromaTransformer2DModel
from diffusers.models.transformers.transformer_flux import FluxTransformer2DModel
from diffusers.models.transformers.transformer_sd3 import SD3Transformer2DModel
from diffusers.models.transformers.transformer_z_image import ZImageTransformer2DModel
from diffusers.models.unets.unet_2d_condition import UNet2DConditionModel
from spandrel_alone import load_esrgan
from transformers.models.clip.configuration_clip import CLIPTextConfig
from transformers.models.clip.modeling_clip import CLIPTextModel, CLIPTextModelWithProjection
from transformers.models.qwen3.configuration_qwen3 import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3Model
from transformers.models.t5.configuration_t5 import T5Config
from transformers.models.t5.modeling_t5 import T5EncoderModel
from transformers.models.umt5.configuration_umt5 import UMT5Config
from transformers.models.umt5.modeling_umt5 import UMT5EncoderModel

from refsd.models.chroma.network import CHROMA, chroma_keymap, chroma_shapes, chroma_size
from refsd.models.clip.network import (
    CLIP_G,
    CLIP_H_23,
    CLIP_L,
    CLIP_L_PROJECTED,
    CLIPSize,
    clip_keymap,
    clip_shapes,
    clip_size,
)
from refsd.models.controlnet.network import (
    CONTROLNET_SD15,
    CONTROLNET_SD21,
    CONTROLNET_SDXL,
    ControlNetSize,
    controlnet_keymap,
    controlnet_shapes,
    controlnet_size,
)
from refsd.models.esrgan.network import (
    ESRGAN_ANIME_6B,
    ESRGAN_X4,
    ESRGANSize,
    esrgan_numbered,
    esrgan_shapes,
    esrgan_size,
)
from refsd.models.flux.network import (
    FLUX_CONTROL,
    FLUX_DEV,
    FLUX_FILL,
    FLUX_SCHNELL,
    FluxSize,
    flux_keymap,
    flux_shapes,
    flux_size,
)
from refsd.models.language_model.network import decoder_keymap
from refsd.models.mmdit.network import (
    SD3_MEDIUM,
    SD35_LARGE,
    SD35_MEDIUM,
    MMDiTSize,
    mmdit_keymap,
    mmdit_shapes,
    mmdit_size,
)
from refsd.models.qwen3.network import QWEN3_4B, qwen3_shapes, qwen3_size
from refsd.models.t5.network import T5_XXL, UMT5_XXL, t5_keymap, t5_shapes, t5_size
from refsd.models.taesd.network import TAESD, TAESD3, TAESDSize, taesd_keymap, taesd_shapes, taesd_size
from refsd.models.unet.network import unet_keymap
from refsd.models.unet.tensors import UNETS, unet_shapes, unet_size
from refsd.models.vae.network import FLUX_VAE, SD3_VAE, SD_VAE, VAESize, vae_keymap, vae_shapes, vae_size
from refsd.models.zimage.network import ZIMAGE, zimage_keymap, zimage_shapes, zimage_size
from refsd.networks.keymap import Keymap

pytestmark = [
    pytest.mark.peer,
    # diffusers imports its own FluxPosEmbed from where it deprecates it.
    pytest.mark.filterwarnings("ignore:.FluxPosEmbed. is deprecated:FutureWarning"),
]


class Full(NamedTuple):
    """A published size, the peer it is of, and how the two name their tensors."""

    size: Any
    shapes: Callable[..., dict[str, tuple[int, ...]]]
    read: Callable[..., Any]
    keymap: Keymap
    peer: Callable[[], torch.nn.Module]


def flux_of(size: FluxSize, **more) -> Full:
    def peer():
        return FluxTransformer2DModel(
            num_layers=19,
            num_single_layers=38,
            attention_head_dim=128,
            num_attention_heads=24,
            joint_attention_dim=4096,
            pooled_projection_dim=768,
            **{"in_channels": 64, "out_channels": 64, "guidance_embeds": True} | more,
        )

    return Full(size, flux_shapes, flux_size, flux_keymap(), peer)


def unet_of(name: str, last_up: tuple[int, ...], **config) -> Full:
    """`last_up`: the levels whose last block on the way up attends."""
    size = UNETS[name]
    keymap = unet_keymap(len(size.widths), size.res_blocks, last_up)
    return Full(
        size,
        unet_shapes,
        unet_size,
        keymap,
        lambda: UNet2DConditionModel(**config),
    )


FOUR: dict[str, Any] = {"block_out_channels": (320, 640, 1280, 1280)}
SD2: dict[str, Any] = FOUR | {
    "cross_attention_dim": 1024,
    "attention_head_dim": (5, 10, 20, 20),
    "use_linear_projection": True,
}
THREE: dict[str, Any] = {
    "block_out_channels": (320, 640, 1280),
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
}
XL: dict[str, Any] = THREE | {
    "cross_attention_dim": 2048,
    "attention_head_dim": (5, 10, 20),
    "transformer_layers_per_block": (1, 2, 10),
    "use_linear_projection": True,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 256,
    "projection_class_embeddings_input_dim": 2816,
}
TINY: dict[str, Any] = {
    "block_out_channels": (320, 640, 1280),
    "down_block_types": ("CrossAttnDownBlock2D",) * 3,
    "up_block_types": ("CrossAttnUpBlock2D",) * 3,
    "mid_block_type": None,
    "layers_per_block": 1,
    "cross_attention_dim": 768,
}
UNET_PEERS = {
    "sd15": unet_of("sd15", (0, 1, 2), **FOUR, cross_attention_dim=768),
    "sd15-inpaint": unet_of("sd15-inpaint", (0, 1, 2), **FOUR, cross_attention_dim=768, in_channels=9),
    "pix2pix": unet_of("pix2pix", (0, 1, 2), **FOUR, cross_attention_dim=768, in_channels=8),
    "sd21": unet_of("sd21", (0, 1, 2), **SD2),
    "sd2-inpaint": unet_of("sd2-inpaint", (0, 1, 2), **SD2, in_channels=9),
    "sdxl": unet_of("sdxl", (1, 2), **XL),
    "sdxl-inpaint": unet_of("sdxl-inpaint", (1, 2), **XL, in_channels=9),
    "sdxl-pix2pix": unet_of("sdxl-pix2pix", (1, 2), **XL, in_channels=8),
    "sdxl-refiner": unet_of(
        "sdxl-refiner",
        (1, 2),
        **XL
        | {
            "block_out_channels": (384, 768, 1536, 1536),
            "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
            "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
            "cross_attention_dim": 1280,
            "attention_head_dim": (6, 12, 24, 24),
            "transformer_layers_per_block": 4,
            "projection_class_embeddings_input_dim": 2560,
        },
    ),
    "ssd-1b": unet_of(
        "ssd-1b",
        (1, 2),
        **XL
        | {
            "mid_block_type": "UNetMidBlock2D",
            "transformer_layers_per_block": [1, [2, 2], [4, 4]],
            "reverse_transformer_layers_per_block": [[4, 4, 10], [2, 1, 1], 1],
        },
    ),
    "vega": unet_of(
        "vega",
        (1, 2),
        **XL | {"mid_block_type": "UNetMidBlock2D", "transformer_layers_per_block": [1, 1, 2]},
    ),
    "tiny-sd": unet_of("tiny-sd", (0, 1, 2), **TINY),
    "sdxs-512": unet_of("sdxs-512", (1, 2), **TINY | THREE),
    "sdxs-09": unet_of(
        "sdxs-09",
        (0, 1, 2),
        **TINY
        | {
            "cross_attention_dim": 1024,
            "attention_head_dim": (5, 10, 20),
            "use_linear_projection": True,
            "only_cross_attention": (True, False, False),
        },
    ),
}

CLIP_L_CONFIG: dict[str, Any] = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
}
CLIP_H: dict[str, Any] = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_attention_heads": 16,
    "num_hidden_layers": 23,
}
CLIP_G_CONFIG: dict[str, Any] = {
    "hidden_size": 1280,
    "intermediate_size": 5120,
    "num_attention_heads": 20,
    "num_hidden_layers": 32,
}


def clip_of(size: CLIPSize, kind, **config) -> Full:
    return Full(
        size,
        clip_shapes,
        clip_size,
        clip_keymap(),
        lambda: kind(CLIPTextConfig(**config)),
    )


def vae_of(size: VAESize, **config) -> Full:
    levels = 4
    usual: dict[str, Any] = {
        "block_out_channels": (128, 256, 512, 512),
        "layers_per_block": 2,
        "down_block_types": ("DownEncoderBlock2D",) * levels,
        "up_block_types": ("UpDecoderBlock2D",) * levels,
    }
    return Full(size, vae_shapes, vae_size, vae_keymap(), lambda: AutoencoderKL(**usual | config))


NO_QUANT: dict[str, Any] = {"use_quant_conv": False, "use_post_quant_conv": False}

T5: dict[str, Any] = {
    "vocab_size": 32128,
    "d_model": 4096,
    "d_kv": 64,
    "d_ff": 10240,
    "num_layers": 24,
    "num_heads": 64,
    "feed_forward_proj": "gated-gelu",
    "relative_attention_num_buckets": 32,
}
UMT5: dict[str, Any] = {**T5, "vocab_size": 256384}
QWEN3: dict[str, Any] = {
    "vocab_size": 151936,
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
}


def mmdit_of(size: MMDiTSize, **config) -> Full:
    usual: dict[str, Any] = {
        "sample_size": 128,
        "patch_size": 2,
        "in_channels": 16,
        "out_channels": 16,
        "attention_head_dim": 64,
        "joint_attention_dim": 4096,
        "pooled_projection_dim": 2048,
        "pos_embed_max_size": 192,
    }
    return Full(
        size,
        mmdit_shapes,
        mmdit_size,
        mmdit_keymap(size.blocks),
        lambda: SD3Transformer2DModel(**usual | config),
    )


def controlnet_of(size: ControlNetSize, **config) -> Full:
    unet = size.unet
    config = {key: value for key, value in config.items() if key != "up_block_types"}
    return Full(
        size,
        controlnet_shapes,
        controlnet_size,
        controlnet_keymap(len(unet.widths), unet.res_blocks),
        lambda: ControlNetModel(**config),
    )


def taesd_of(size: TAESDSize, **config) -> Full:
    return Full(size, taesd_shapes, taesd_size, taesd_keymap(), lambda: AutoencoderTiny(**config))


def esrgan_of(size: ESRGANSize) -> Full:
    """spandrel reads the size from the tensors it is given, by rules of its own, and refuses others."""
    keymap = esrgan_numbered(size.blocks)

    def peer():
        sources = {name: keymap.theirs(name) for name in esrgan_shapes(size)}
        state = {
            source.names[0]: torch.empty(esrgan_shapes(size)[name]) for name, source in sources.items() if source
        }
        return load_esrgan(state).model

    return Full(size, esrgan_shapes, esrgan_size, keymap, peer)


FULL = UNET_PEERS | {
    "sd3-medium": mmdit_of(SD3_MEDIUM, num_layers=24, num_attention_heads=24, caption_projection_dim=1536),
    "sd35-medium": mmdit_of(
        SD35_MEDIUM,
        num_layers=24,
        num_attention_heads=24,
        caption_projection_dim=1536,
        pos_embed_max_size=384,
        qk_norm="rms_norm",
        dual_attention_layers=tuple(range(13)),
    ),
    "sd35-large": mmdit_of(
        SD35_LARGE,
        num_layers=38,
        num_attention_heads=38,
        caption_projection_dim=2432,
        qk_norm="rms_norm",
    ),
    "t5-xxl": Full(
        T5_XXL,
        t5_shapes,
        t5_size,
        t5_keymap(),
        lambda: T5EncoderModel(T5Config(**T5)),
    ),
    "umt5-xxl": Full(
        UMT5_XXL,
        t5_shapes,
        t5_size,
        t5_keymap(),
        lambda: UMT5EncoderModel(UMT5Config(**UMT5)),
    ),
    "qwen3-4b": Full(
        QWEN3_4B,
        qwen3_shapes,
        qwen3_size,
        decoder_keymap(),
        lambda: Qwen3Model(Qwen3Config(**QWEN3)),
    ),
    "controlnet-sd15": controlnet_of(CONTROLNET_SD15, **FOUR, cross_attention_dim=768),
    "controlnet-sd21": controlnet_of(CONTROLNET_SD21, **SD2),
    "controlnet-sdxl": controlnet_of(CONTROLNET_SDXL, **XL),
    "taesd": taesd_of(TAESD, latent_channels=4),
    "taesd3": taesd_of(TAESD3, latent_channels=16),
    "esrgan-x4": esrgan_of(ESRGAN_X4),
    "esrgan-anime": esrgan_of(ESRGAN_ANIME_6B),
    "clip-l": clip_of(CLIP_L, CLIPTextModel, **CLIP_L_CONFIG),
    "clip-l-projected": clip_of(CLIP_L_PROJECTED, CLIPTextModelWithProjection, **CLIP_L_CONFIG, projection_dim=768),
    "clip-h-23": clip_of(CLIP_H_23, CLIPTextModel, **CLIP_H),
    "clip-g": clip_of(CLIP_G, CLIPTextModelWithProjection, **CLIP_G_CONFIG, projection_dim=1280),
    "vae": vae_of(SD_VAE, latent_channels=4),
    "vae-flux": vae_of(FLUX_VAE, latent_channels=16, **NO_QUANT),
    "vae-sd3": vae_of(SD3_VAE, latent_channels=16, **NO_QUANT),
    "vae-32": vae_of(VAESize(latent_channels=32), latent_channels=32),
    "flux-dev": flux_of(FLUX_DEV),
    "flux-schnell": flux_of(FLUX_SCHNELL, guidance_embeds=False),
    "flux-fill": flux_of(FLUX_FILL, in_channels=384),
    "flux-control": flux_of(FLUX_CONTROL, in_channels=128),
    "chroma": Full(
        CHROMA,
        chroma_shapes,
        chroma_size,
        chroma_keymap(),
        lambda: ChromaTransformer2DModel(
            num_layers=19,
            num_single_layers=38,
            attention_head_dim=128,
            num_attention_heads=24,
            joint_attention_dim=4096,
            approximator_num_channels=64,
            approximator_hidden_dim=5120,
            approximator_layers=5,
        ),
    ),
    "zimage": Full(
        ZIMAGE,
        zimage_shapes,
        zimage_size,
        zimage_keymap(),
        lambda: ZImageTransformer2DModel(
            in_channels=16,
            dim=3840,
            n_layers=30,
            n_refiner_layers=2,
            n_heads=30,
            n_kv_heads=30,
            cap_feat_dim=2560,
        ),
    ),
}


def headless(names) -> set[str]:
    """transformers' models without a head leave `text_model.` or `model.` out, and read it."""
    return {name.removeprefix("text_model.").removeprefix("model.") for name in names}


def state_of(peer: Callable[[], torch.nn.Module]) -> dict[str, tuple[int, ...]]:
    """What a saved file holds: of tensors that are one, the first name."""
    with torch.device("meta"):
        model = peer()
    once, all_names = (dict(model.named_parameters(remove_duplicate=flag)) for flag in (True, False))
    tied = all_names.keys() - once.keys()
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items() if name not in tied}


@pytest.mark.parametrize("name", FULL)
def test_full_size_both_ways(name):
    full = FULL[name]
    theirs = state_of(full.peer)
    ours = full.shapes(full.size)
    found, rest = full.keymap.sources(theirs)
    assert rest == []
    assert {name: source.shape(theirs) for name, source in found.items()} == ours
    there = [full.keymap.theirs(name) for name in ours]
    assert headless(part for source in there if source for part in source.names) == headless(theirs)
    assert sum(map(math.prod, ours.values())) == sum(map(math.prod, theirs.values()))
    assert full.read({name: source.shape(theirs) for name, source in found.items()}) == full.size


def test_zimage_is_in_the_originals_order():
    """But for the norms of queries and keys, which diffusers makes before the projections."""

    def modules(names):
        return list(dict.fromkeys(".".join(name.split(".")[:3]) for name in names))

    state = state_of(FULL["zimage"].peer)
    order = [FULL["zimage"].keymap.ours(name) for name in state]
    assert modules(hit[0] for hit in order if hit) == modules(zimage_shapes(ZIMAGE))
