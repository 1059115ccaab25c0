"""Qwen-Image-Layered: a picture taken apart into layers with alpha, against diffusers' pipeline, in float64."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from diffusers import (
    FlowMatchEulerDiscreteScheduler,
    QwenImageLayeredPipeline,
    QwenImageTransformer2DModel,
    image_processor,
)
from diffusers.pipelines.qwenimage import pipeline_qwenimage_layered
from float64_peers import float64_throughout, redraw
from PIL import Image
from record_tokenizers import qwen2
from test_models_qwen_vl import peer_config
from test_models_vae_wan import peer_vae
from test_pictures import _lifted, agree, of  # noqa: F401
from test_pictures_edited import UGLY, WORDS, given
from tiny_tokenizers import bytes_trained
from transformers import Qwen2_5_VLForConditionalGeneration

from refsd.families import editing
from refsd.models.qwen_vl import QWEN2_5_SECTIONS, qwen2_5_vl
from refsd.models.qwen_vl.network import Qwen25Size
from refsd.models.vae_wan.network import WanVAESize
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT64
from refsd.pipelines import txt2img
from refsd.pipelines.initial_latent import initial_latent
from refsd.pipelines.pipeline import open_pipeline
from refsd.pipelines.plan import resolve
from refsd.pipelines.prompts import Tokenizers
from refsd.pipelines.settings import Settings
from refsd.weights import open_checkpoint

pytestmark = pytest.mark.peer

AREA = 64 * 64


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """Layers of AREA pixels, in float64."""
    monkeypatch.setattr(editing, "LAYERED_AREA", AREA)
    sized = pipeline_qwenimage_layered.calculate_dimensions
    monkeypatch.setattr(pipeline_qwenimage_layered, "calculate_dimensions", lambda _, ratio: sized(AREA, ratio))
    monkeypatch.setattr(image_processor, "np", SimpleNamespace(**{**vars(np), "float32": np.float64}))


def folder_of(place):
    """The parts of a folder as diffusers saves it -> the pipeline, and refsd's"""
    tokens, merges, special = bytes_trained()
    tokenizer = qwen2(tokens, merges, special)
    config = peer_config(qwen2_5_vl, Qwen25Size(256, 2, 2, 1, 128, 20, len(tokenizer)), QWEN2_5_SECTIONS, 1e6)
    config.vision_config.depth, config.vision_config.hidden_size = 1, 24
    parts = SimpleNamespace(
        scheduler=FlowMatchEulerDiscreteScheduler(
            use_dynamic_shifting=True, max_shift=0.9, max_image_seq_len=8192, shift_terminal=0.02
        ),
        vae=peer_vae(WanVAESize(8, (8, 16, 32, 32), 1), input_channels=4),
        text_encoder=Qwen2_5_VLForConditionalGeneration(config).eval(),
        tokenizer=tokenizer,
        transformer=QwenImageTransformer2DModel(
            num_layers=1,
            num_attention_heads=2,
            joint_attention_dim=256,
            attention_head_dim=128,
            use_additional_t_cond=True,
            use_layer3d_rope=True,
        ).eval(),
    )
    for seed, name in enumerate(("transformer", "vae", "text_encoder")):
        redraw(getattr(parts, name), seed)
    for name, part in vars(parts).items():
        part.save_pretrained(place / name)
    (place / "model_index.json").write_text(json.dumps({"_class_name": "QwenImageLayeredPipeline"}))
    ours = open_pipeline(open_checkpoint(place), Tokenizers(model=place), Arithmetic(FLOAT64), 1 << 30)
    return QwenImageLayeredPipeline(**vars(parts), processor=None), ours


@pytest.mark.parametrize(
    ("size", "layers", "alpha", "cfg"),
    [((40, 61), None, True, 1.0), ((70, 33), 2, True, 3.5), ((64, 64), 1, False, 2.0), ((300, 60), 3, True, 3.5)],
)
def test_a_picture_taken_apart(tmp_path, size, layers, alpha, cfg):
    """One that needs no resizing, one without alpha; the noise is the seed's."""
    pixels = np.random.default_rng(1).integers(0, 256, (*size, 4 if alpha else 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "whole.png")
    with float64_throughout():
        pipe, ours = folder_of(tmp_path / "model")
        assert ours.variant.name == "qwen-image-layered"
        settings = Settings(WORDS, UGLY, 0, 0, 2, cfg, like="diffusers", qwen_image_layers=layers)
        plan = resolve(ours, settings, given([tmp_path / "whole.png"]))
        begin = initial_latent(ours, plan, 0)
        latent = txt2img.sample(ours, plan, txt2img.encode(ours, plan), 0, start=begin)
        mine = latent, np.clip(txt2img.decode(ours, latent), -1, 1)
        pipe.set_progress_bar_config(disable=True)
        pipe.image_processor.postprocess = lambda image, output_type="pt", **_: image
        steps = []  # output_type="latent" fails in diffusers 0.42.1
        pictures = pipe(
            image=Image.open(tmp_path / "whole.png").convert("RGBA"), prompt=WORDS, negative_prompt=UGLY,
            true_cfg_scale=cfg, num_inference_steps=2, layers=4 if layers is None else layers,
            latents=pipe._pack_latents(of(begin.noise), 1, 16, *plan.latent_shape[-2:], plan.latent_shape[1]),
            callback_on_step_end=lambda pipe, i, t, given: steps.append(given["latents"]) or given,
        ).images  # fmt: skip
        frames = pipe._unpack_latents(steps[-1], plan.height, plan.width, plan.latent_shape[1] - 1, 8)
    assert mine[1].shape == (layers or 4, 4, plan.height, plan.width)
    agree(mine, (frames.transpose(1, 2), pictures[0]))
