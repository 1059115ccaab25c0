"""Pictures of SDXL's refiner, inpainting and editing UNets and of a tiny autoencoder, against diffusers in float64.

From what the encoders say on; test_conditioning has the way from the prompt.
"""

import numpy as np
import pytest
from diffusers import (
    AutoencoderTiny,
    StableDiffusionImg2ImgPipeline,
    StableDiffusionXLImg2ImgPipeline,
    StableDiffusionXLInpaintPipeline,
    StableDiffusionXLInstructPix2PixPipeline,
    StableDiffusionXLPipeline,
)
from float64_peers import draw, float64_throughout, redraw
from test_models_sdxl import Config, peer_unet
from test_models_vae import peer_vae
from test_pictures import _lifted, agree, answer, encoders, euler, of  # noqa: F401
from test_pictures_given import MASK, PICTURE, SEED, UNET_TEXTS, H, W, drawn, opened, unet_parts, unet_settings
from test_pictures_given import _lifted as _draws_in_float64  # noqa: F401

from refsd.conventions.diffusers import PICTURES as DIFFUSERS
from refsd.families.family import Condition, Encoded, EncodedPrompt
from refsd.models.unet.tensors import UNetSize
from refsd.models.vae.network import VAESize
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT64
from refsd.pipelines.conditioning_images import ConditioningImages
from refsd.pipelines.pipeline import open_pipeline
from refsd.pipelines.prompts import Tokenizers
from refsd.pipelines.txt2img import Conditioning
from refsd.weights import open_checkpoint

pytestmark = [
    pytest.mark.peer,
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"),
]

CLIP_L = 16  # channels of the hidden states, whose rest is bigG's
SIZE = UNetSize(32, (32, 64), (1,), 1, 40)


def sdxl_case(
    tmp_path,
    kind,
    settings,
    images,
    names=("clip", "clip_g"),
    channels=4,
    pooled=56,
    beside=None,
    more=None,
    told=((),) * 2,
    **asked,
):
    """beside: further networks; more: what their pipeline is told when it is made; told: sizes of each prompt"""
    sizes = 6 if len(names) == 2 else 5
    texts, pooled_texts = draw((2, 7, 40), 2), draw((2, pooled), 3)
    with float64_throughout():
        config = Config(SIZE._replace(in_channels=channels), [1, 2], (H, W), 7, pooled, sizes)
        parts = {
            "unet": peer_unet(config),
            "vae": peer_vae(VAESize(32, (32, 32, 32, 32), 1), 32, scaling_factor=0.13025),
            "scheduler": euler(timestep_spacing="leading"),
            **(beside or {}),
        }
        ours = opened(tmp_path, parts, names)
        none = dict.fromkeys(("text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2"))
        pipe = kind(**parts, **none, add_watermarker=False, **(more or {}))
        theirs = answer(
            pipe, SEED, prompt_embeds=of(texts[:1]), negative_prompt_embeds=of(texts[1:]),
            pooled_prompt_embeds=of(pooled_texts[:1]), negative_pooled_prompt_embeds=of(pooled_texts[1:]),
            num_inference_steps=settings.steps, guidance_scale=4.0, **asked,
        )  # fmt: skip
        made = []
        for i in range(2):
            seen = np.ones((1, 7), np.int64)
            split = {"clip": texts[i : i + 1, :, :CLIP_L], "clip_g": texts[i : i + 1, :, CLIP_L:]}
            split = split if len(names) == 2 else {"clip_g": texts[i : i + 1]}
            encoded = {name: Encoded(text, pooled_texts[i : i + 1], seen) for name, text in split.items()}
            size, *its = told[i] or ((H, W),)
            prompt = EncodedPrompt(encoded, ours.denoiser.module, size, DIFFUSERS, i == 1, False, *its)
            made.append(ours.variant.join(prompt))
        mine = drawn(ours, settings, Conditioning(*made), images)
    agree(mine, theirs)
    return ours.variant.name


@pytest.mark.parametrize("strength", [0.3, 0.75])
def test_the_refiner(tmp_path, strength):
    """The scores are 6.0 with the prompt and 2.5 without; pooled text of 1280 channels tells it apart."""
    settings, images = unet_settings(5, strength), ConditioningImages(init=PICTURE)
    asked = {"image": of(PICTURE), "strength": strength}
    more = {"requires_aesthetics_score": True}
    kind = StableDiffusionXLImg2ImgPipeline
    name = sdxl_case(tmp_path, kind, settings, images, ("clip_g",), pooled=1280, more=more, **asked)
    assert name == "sdxl-refiner"


@pytest.mark.parametrize(("channels", "strength"), [(9, 1.0), (9, 0.6), (4, 0.6)])
def test_inpainting(tmp_path, channels, strength):
    settings, images = unet_settings(5, strength), ConditioningImages(init=PICTURE, mask=MASK)
    asked = {"image": of(PICTURE), "mask_image": of(MASK), "strength": strength, "height": H, "width": W}
    name = sdxl_case(tmp_path, StableDiffusionXLInpaintPipeline, settings, images, channels=channels, **asked)
    assert name == ("sdxl-inpaint" if channels == 9 else "sdxl")


@pytest.mark.parametrize("own", [True, False])
def test_sizes_and_crops_of_both_prompts(tmp_path, own):
    """Without negative sizes of its own the negative prompt has the prompt's, and no negative crop."""
    settings, images = unet_settings(3, 0.75), ConditioningImages()
    given = (768, 512), (640, 704), (48, 16)
    other = (896, 320), (256, 1024), (8, 24)
    names = "target_size", "original_size", "crops_coords_top_left"
    asked = dict(zip(names, given, strict=True)) | {"negative_crops_coords_top_left": other[2]}
    asked |= {f"negative_{name}": value for name, value in zip(names, other, strict=True)} if own else {}
    told = given, other if own else given
    sdxl_case(tmp_path, StableDiffusionXLPipeline, settings, images, told=told, height=H, width=W, **asked)


@pytest.mark.parametrize("strength", [0.45, 1.0])
def test_img2img(tmp_path, strength):
    settings, images = unet_settings(5, strength), ConditioningImages(init=PICTURE)
    asked = {"image": of(PICTURE), "strength": strength}
    assert sdxl_case(tmp_path, StableDiffusionXLImg2ImgPipeline, settings, images, **asked) == "sdxl"


def test_edits(tmp_path):
    settings, images = unet_settings(3, 0.75)._replace(image_cfg_scale=1.75), ConditioningImages(reference=PICTURE)
    asked = {"image": of(PICTURE), "image_guidance_scale": 1.75, "height": H, "width": W}
    kind = StableDiffusionXLInstructPix2PixPipeline
    assert sdxl_case(tmp_path, kind, settings, images, channels=8, **asked) == "sdxl-edit"


def test_a_tiny_autoencoder_both_ways(tmp_path):
    """img2img, so that it encodes too."""
    images = ConditioningImages(init=PICTURE)
    with float64_throughout():
        parts = unet_parts()
        parts["vae"] = AutoencoderTiny(
            encoder_block_out_channels=(16,) * 4, decoder_block_out_channels=(16,) * 4,
            num_encoder_blocks=(1, 2, 1, 1), num_decoder_blocks=(1, 1, 2, 1),
        )  # fmt: skip
        opened_parts = opened_with_tiny(tmp_path, parts)
        parts["unet"].register_to_config(sample_size=64)
        pipe = StableDiffusionImg2ImgPipeline(
            **parts, text_encoder=None, tokenizer=None, safety_checker=None, feature_extractor=None,
            requires_safety_checker=False,
        )  # fmt: skip
        theirs = answer(pipe, SEED, **UNET_TEXTS, num_inference_steps=5, image=of(PICTURE), strength=0.6)
        texts = (Condition(UNET_TEXTS[name].numpy()) for name in ("prompt_embeds", "negative_prompt_embeds"))
        mine = drawn(opened_parts, unet_settings(5, 0.6), Conditioning(*texts), images)
    assert opened_parts.autoencoder.tiny
    agree(mine, theirs)


def opened_with_tiny(folder, parts):
    """refsd's pipeline of the folder without its vae/, which --taesd replaces."""
    for i, (name, part) in enumerate(parts.items()):
        if name != "scheduler":
            redraw(part, 4 + i)
        part.save_pretrained(folder / ("tiny" if name == "vae" else name))
    encoders(folder, "clip")
    tiny = folder / "tiny" / "diffusion_pytorch_model.safetensors"
    checkpoint = open_checkpoint(folder, {"--taesd": tiny})
    return open_pipeline(checkpoint, Tokenizers(), Arithmetic(FLOAT64), 1 << 30)
