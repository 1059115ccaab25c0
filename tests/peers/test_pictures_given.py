"""Pictures from pictures, against diffusers' pipelines in float64: img2img, masks, edits, hints; their draws too.

The generator is one for both: torch's of the CPU, which in float64 draws another stream than in float32.
"""

import inspect
from types import SimpleNamespace

import numpy as np
import pytest
from diffusers import (
    FlowMatchEulerDiscreteScheduler,
    FluxControlPipeline,
    FluxFillPipeline,
    FluxImg2ImgPipeline,
    FluxKontextPipeline,
    FluxTransformer2DModel,
    StableDiffusionControlNetPipeline,
    StableDiffusionImg2ImgPipeline,
    StableDiffusionInpaintPipeline,
    StableDiffusionInstructPix2PixPipeline,
    StableDiffusionXLInstructPix2PixPipeline,
)
from diffusers.schedulers import scheduling_euler_discrete, scheduling_flow_match_euler_discrete
from float64_peers import draw, float64_throughout, redraw
from test_models_controlnet import peer_controlnet
from test_models_unet import peer_unet
from test_models_vae import peer_vae
from test_pictures import NO_QUANT, agree, answer, encoders, euler, of

from refsd.families.family import Condition
from refsd.models.unet.tensors import UNetSize
from refsd.models.vae.network import VAESize
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT64
from refsd.pipelines import txt2img
from refsd.pipelines.conditioning_images import ConditioningImages
from refsd.pipelines.pipeline import open_pipeline
from refsd.pipelines.plan import resolve
from refsd.pipelines.prompts import Tokenizers
from refsd.pipelines.settings import Settings
from refsd.pipelines.txt2img import Conditioning
from refsd.samplers.noise import RNGS, TorchCpu
from refsd.weights import open_checkpoint

pytestmark = [
    pytest.mark.peer,
    pytest.mark.filterwarnings("ignore:`FluxPosEmbed` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"),
]

UNET = UNetSize(32, (32, 64), (0,), 1, 24)
H, W, SEED = 32, 48, 7
PICTURE = np.abs(np.sin(draw((1, 3, H, W), 11)))
OTHER = np.abs(np.sin(draw((1, 3, H, W), 12)))
MASK = (draw((1, 1, H, W), 13) > 0).astype(np.float64)
COND, UNCOND = draw((1, 7, 24), 2), draw((1, 7, 24), 3)
UNET_TEXTS = {"prompt_embeds": of(COND), "negative_prompt_embeds": of(UNCOND), "guidance_scale": 4.0}
FLUX_TEXTS = {"prompt_embeds": of(draw((1, 7, 11), 2)), "pooled_prompt_embeds": of(draw((1, 13), 3))}


class _Wide(TorchCpu):
    """As torch draws it for float64."""

    def randn(self, shape):
        return super().randn(shape, np.float64)


@pytest.fixture(autouse=True)
def _lifted(monkeypatch):
    wide = SimpleNamespace(**{**vars(np), "float32": np.float64})
    for module in (scheduling_euler_discrete, scheduling_flow_match_euler_discrete):
        monkeypatch.setattr(module, "np", wide)
    monkeypatch.setitem(RNGS, "cpu", _Wide)


def opened(folder, parts, names):
    """Every part with weights of its own, saved; and refsd's pipeline of the folder."""
    for i, (name, part) in enumerate(parts.items()):
        if name != "scheduler":
            redraw(part, 4 + i)
        part.save_pretrained(folder / name)
    encoders(folder, *names)
    return open_pipeline(open_checkpoint(folder), Tokenizers(), Arithmetic(FLOAT64), 1 << 30)


def drawn(ours, settings, conditioning, images):
    latent = txt2img.sample(ours, resolve(ours, settings._replace(seed=SEED), images), conditioning, SEED)
    return latent, txt2img.decode(ours, latent)


def unet_parts(channels=4, **more):
    return {
        "unet": peer_unet(UNET._replace(in_channels=channels), 8, 32),
        "vae": peer_vae(VAESize(32, (32, 32, 32, 32), 1), 32),
        "scheduler": euler(timestep_spacing="leading"),
        **more,
    }


def unet_case(tmp_path, kind, channels, settings, images, more=None, **asked):
    with float64_throughout():
        parts = unet_parts(channels, **(more() if more else {}))
        ours = opened(tmp_path, parts, ["clip"])
        parts["unet"].register_to_config(sample_size=64)  # which their pipelines look at, and do not use here
        pipe = kind(
            **parts, text_encoder=None, tokenizer=None, safety_checker=None, feature_extractor=None,
            requires_safety_checker=False,
        )  # fmt: skip
        theirs = answer(pipe, SEED, **UNET_TEXTS, num_inference_steps=settings.steps, **asked)
        mine = drawn(ours, settings, Conditioning(Condition(COND), Condition(UNCOND)), images)
    agree(mine, theirs)


def unet_settings(steps, strength):
    return Settings("", "", W, H, steps=steps, cfg_scale=4.0, like="diffusers", strength=strength)


@pytest.mark.parametrize("strength", [0.45, 1.0])
def test_img2img(tmp_path, strength):
    images = ConditioningImages(init=PICTURE)
    settings = unet_settings(5, strength)
    unet_case(tmp_path, StableDiffusionImg2ImgPipeline, 4, settings, images, image=of(PICTURE), strength=strength)


@pytest.mark.parametrize(("channels", "strength"), [(9, 1.0), (9, 0.6), (4, 0.6)])
def test_inpaint(tmp_path, channels, strength):
    images = ConditioningImages(init=PICTURE, mask=MASK)
    asked = {"image": of(PICTURE), "mask_image": of(MASK), "strength": strength, "height": H, "width": W}
    kind = StableDiffusionInpaintPipeline
    unet_case(tmp_path, kind, channels, unet_settings(5, strength), images, **asked)


@pytest.mark.parametrize(
    "pipeline", [StableDiffusionInstructPix2PixPipeline, StableDiffusionXLInstructPix2PixPipeline]
)
def test_the_guidance_by_a_picture_is_1_5_by_default(pipeline):
    """Which tests/refsd/pipelines/test_conditioning_images.py holds refsd to."""
    assert inspect.signature(pipeline.__call__).parameters["image_guidance_scale"].default == 1.5


def test_pix2pix(tmp_path):
    settings, images = unet_settings(3, 0.75)._replace(image_cfg_scale=1.75), ConditioningImages(reference=PICTURE)
    asked = {"image": of(PICTURE), "image_guidance_scale": 1.75}
    unet_case(tmp_path, StableDiffusionInstructPix2PixPipeline, 8, settings, images, **asked)


def test_controlnet(tmp_path):
    settings, images = unet_settings(3, 0.75)._replace(control_strength=0.7), ConditioningImages(control=PICTURE)
    asked = {"image": of(PICTURE), "controlnet_conditioning_scale": 0.7}
    more = lambda: {"controlnet": peer_controlnet(UNET, 8, 32, (16, 32, 96, 256))}
    unet_case(tmp_path, StableDiffusionControlNetPipeline, 4, settings, images, more, **asked)


def flux_case(tmp_path, kind, channels, settings, images, **asked):
    with float64_throughout():
        parts = {
            "transformer": FluxTransformer2DModel(
                in_channels=channels, out_channels=64, num_layers=1, num_single_layers=1, attention_head_dim=128,
                num_attention_heads=1, joint_attention_dim=11, pooled_projection_dim=13, guidance_embeds=True,
                axes_dims_rope=(16, 56, 56),
            ),
            "vae": peer_vae(
                VAESize(32, (32, 32, 32, 32), 1, 16), 32, NO_QUANT, scaling_factor=0.3611, shift_factor=0.1159
            ),
            "scheduler": FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True, shift=3.0),
        }  # fmt: skip
        ours = opened(tmp_path, parts, ["clip", "t5"])
        pipe = kind(**parts, text_encoder=None, tokenizer=None, text_encoder_2=None, tokenizer_2=None)
        theirs = answer(
            pipe, SEED, **FLUX_TEXTS, num_inference_steps=settings.steps, guidance_scale=2.75, height=H, width=W,
            **asked,
        )  # fmt: skip
        text = Condition(*(tensor.numpy() for tensor in FLUX_TEXTS.values()))
        mine = drawn(ours, settings, Conditioning(text, None), images)
    agree(mine, (kind._unpack_latents(theirs[0], H, W, 8), theirs[1]))


def flux_settings(steps, strength=1.0):
    return Settings("", "", W, H, steps=steps, guidance=2.75, like="diffusers", strength=strength)


def test_flux_img2img(tmp_path):
    settings, images = flux_settings(5, 0.45), ConditioningImages(init=PICTURE)
    flux_case(tmp_path, FluxImg2ImgPipeline, 64, settings, images, image=of(PICTURE), strength=0.45)


@pytest.mark.parametrize("strength", [1.0, 0.6])
def test_flux_fill(tmp_path, strength):
    settings, images = flux_settings(4, strength), ConditioningImages(init=PICTURE, mask=MASK)
    asked = {"image": of(PICTURE), "mask_image": of(MASK), "strength": strength}
    flux_case(tmp_path, FluxFillPipeline, 384, settings, images, **asked)


def test_flux_control(tmp_path):
    """A tensor their pipeline takes as it is: -1..1."""
    settings, images = flux_settings(3), ConditioningImages(control=PICTURE)
    flux_case(tmp_path, FluxControlPipeline, 128, settings, images, control_image=of(2 * PICTURE - 1))


def test_kontext(tmp_path):
    settings, images = flux_settings(3), ConditioningImages(reference=OTHER)
    asked = {"image": of(OTHER), "max_area": H * W, "_auto_resize": False}
    flux_case(tmp_path, FluxKontextPipeline, 64, settings, images, **asked)
