"""Pictures with an IP-Adapter against diffusers' pipelines in float64, and what CLIP sees of a picture."""

import numpy as np
import pytest
import torch
from diffusers import StableDiffusionControlNetPipeline, StableDiffusionPipeline
from float64_peers import distance, draw, draw_weights, float64_throughout, redraw
from PIL import Image
from test_models_controlnet import peer_controlnet
from test_models_ip_adapter import KINDS, as_in_a_checkpoint, size_for
from test_pictures import agree, answer, encoders, of
from test_pictures_given import COND, PICTURE, SEED, UNCOND, UNET, UNET_TEXTS, H, W, _lifted, drawn, unet_parts
from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from refsd.families.family import Condition
from refsd.models.ip_adapter.network import ip_adapter_shapes
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT64
from refsd.pipelines.conditioning_images import ConditioningImages
from refsd.pipelines.guided_network import Conditioning
from refsd.pipelines.image_prompt import seen_by_clip, with_image_prompt
from refsd.pipelines.pipeline import open_pipeline
from refsd.pipelines.prompts import Tokenizers
from refsd.pipelines.settings import Settings
from refsd.weights import open_checkpoint

pytestmark = [
    pytest.mark.peer,
    pytest.mark.usefixtures(_lifted.__name__),
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"),
]

SIDE = 20
SEEN = tuple(np.abs(np.sin(draw((1, 3, 31, 45), i))) for i in (21, 22))


@pytest.mark.parametrize("size", [(31, 45), (45, 31), (20, 20), (7, 9), (224, 301), (61, 60)])
def test_clip_sees_what_their_processor_gives(size):
    pixels = np.random.default_rng(1).integers(0, 256, (*size, 3), np.uint8)
    processor = CLIPImageProcessorPil(size={"shortest_edge": 28}, crop_size=28)
    want = processor(Image.fromarray(pixels), return_tensors="pt").pixel_values
    got = seen_by_clip(pixels.transpose(2, 0, 1)[None] / 255, 28)
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want.numpy(), atol=2e-6)  # theirs is float32


def vision_tower():
    config = CLIPVisionConfig(
        hidden_size=40, intermediate_size=48, num_hidden_layers=3, num_attention_heads=2, patch_size=4,
        image_size=SIDE, hidden_act="gelu", projection_dim=24,
    )  # fmt: skip
    return CLIPVisionModelWithProjection(config).eval()


@pytest.mark.parametrize("controlled", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_picture(tmp_path, kind, controlled):
    """Two pictures as a prompt, at a scale of 0.6; with a ControlNet too."""
    more, asked, images = {}, {}, ConditioningImages(ip=SEEN)
    with float64_throughout():
        if controlled:
            more["controlnet"] = peer_controlnet(UNET, 8, 32, (16, 32, 96, 256))
            asked = {"image": of(PICTURE), "controlnet_conditioning_scale": 0.7}
            images = images._replace(control=PICTURE)
        parts = unet_parts(**more, image_encoder=vision_tower())
        for i, (name, part) in enumerate(parts.items()):
            if name != "scheduler":
                redraw(part, 4 + i)
            part.save_pretrained(tmp_path / "model" / name)
        encoders(tmp_path / "model", "clip")
        size = size_for(parts["unet"], kind)._replace(seen=24 if kind == "plain" else 40)
        weights = draw_weights(ip_adapter_shapes(size), seed=2)
        torch.save(as_in_a_checkpoint(weights), tmp_path / "adapter.bin")
        parts["unet"].register_to_config(sample_size=64)
        pipe = (StableDiffusionControlNetPipeline if controlled else StableDiffusionPipeline)(
            **parts, text_encoder=None, tokenizer=None, safety_checker=None, feature_extractor=None,
            requires_safety_checker=False,
        )  # fmt: skip
        loaded = as_in_a_checkpoint(weights)
        pipe.load_ip_adapter(loaded, "", "adapter.bin", low_cpu_mem_usage=False)
        parts["unet"].double()
        pipe.set_ip_adapter_scale(0.6)
        seen = torch.cat([of(seen_by_clip(picture, SIDE)) for picture in SEEN])
        theirs = answer(
            pipe, SEED, **UNET_TEXTS, **asked, num_inference_steps=3, height=H, width=W, ip_adapter_image=[seen]
        )
        checkpoint = open_checkpoint(tmp_path / "model", {"--ip-adapter": tmp_path / "adapter.bin"})
        ours = open_pipeline(checkpoint, Tokenizers(), Arithmetic(FLOAT64), 1 << 30)
        settings = Settings(
            "", "", W, H, steps=3, cfg_scale=4.0, like="diffusers", ip_scale=0.6, control_strength=0.7
        )
        conditioning = with_image_prompt(ours, Conditioning(Condition(COND), Condition(UNCOND)), SEEN)
        mine = drawn(ours, settings, conditioning, images)
        plain = drawn(ours, settings, Conditioning(Condition(COND), Condition(UNCOND)), images)
    agree(mine, theirs)
    assert distance(plain[1], theirs[1]) > 1e-3
