"""Qwen-Image-Edit from words and pictures to a picture, against diffusers' pipelines, in float64."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from diffusers import (
    FlowMatchEulerDiscreteScheduler,
    QwenImageEditPipeline,
    QwenImageEditPlusPipeline,
    QwenImageTransformer2DModel,
    image_processor,
)
from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit, pipeline_qwenimage_edit_plus
from float64_peers import draw, float64_throughout, redraw
from PIL import Image
from record_tokenizers import qwen2
from test_models_qwen_vl import peer_config
from test_models_vae_wan import peer_vae
from test_pictures import _lifted, agree, answer, of  # noqa: F401
from tiny_tokenizers import bytes_trained
from transformers import BatchFeature, Qwen2_5_VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from refsd.families import editing
from refsd.models.qwen_vl import QWEN2_5_SECTIONS, qwen2_5_vl
from refsd.models.qwen_vl.network import Qwen25Size
from refsd.models.vae_wan.network import WanVAESize
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT64
from refsd.pipelines import txt2img
from refsd.pipelines.conditioning_images import ConditioningImages, read_image
from refsd.pipelines.initial_latent import initial_latent
from refsd.pipelines.pipeline import open_pipeline
from refsd.pipelines.plan import resolve
from refsd.pipelines.prompts import Tokenizers
from refsd.pipelines.settings import Settings
from refsd.weights import open_checkpoint

pytestmark = pytest.mark.peer

WORDS, UGLY = "the cat's hat is red", "a mat"
MARKS = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>"]
PATCH, AREA = 4, 48 * 48


class Processor:
    """Qwen2.5-VL's: its picture half is transformers' own, its arithmetic in float64."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.pictures = Qwen2VLImageProcessorPil(
            patch_size=PATCH,
            do_rescale=False,
            do_normalize=False,
            size={"shortest_edge": 3136, "longest_edge": 12845056},
        )

    def __call__(self, text, images, padding, return_tensors):
        seen = self.pictures(images if isinstance(images, list) else [images], return_tensors="pt")
        tokens = [int(grid.prod()) // 4 for grid in seen["image_grid_thw"]]
        whole = []
        for line in text:
            first, *parts = line.split(MARKS[2])
            assert len(parts) == len(tokens)
            whole.append(first + "".join(MARKS[2] * n + part for n, part in zip(tokens, parts, strict=True)))
        values = seen["pixel_values"].double().reshape(-1, 3, 2 * PATCH**2) / 255
        mean, std = (torch.tensor(row, dtype=torch.float64)[:, None] for row in (editing.MEAN, editing.STD))
        told = self.tokenizer(whole, padding=padding, return_tensors="pt")
        pixels = ((values - mean) / std).reshape(len(values), -1)
        return BatchFeature({**told, "pixel_values": pixels, "image_grid_thw": seen["image_grid_thw"]})


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """Pictures of AREA pixels for both encoders, in float64."""
    for name in ("LATENT_AREA", "SEEN_AREA"):
        monkeypatch.setattr(editing, name, AREA)
    monkeypatch.setattr(pipeline_qwenimage_edit_plus, "VAE_IMAGE_SIZE", AREA)
    monkeypatch.setattr(pipeline_qwenimage_edit_plus, "CONDITION_IMAGE_SIZE", AREA)
    sized = pipeline_qwenimage_edit.calculate_dimensions
    monkeypatch.setattr(pipeline_qwenimage_edit, "calculate_dimensions", lambda _, ratio: sized(AREA, ratio))
    monkeypatch.setattr(image_processor, "np", SimpleNamespace(**{**vars(np), "float32": np.float64}))


def folder_of(place, zero_cond_t, program):
    """The parts of a folder as diffusers saves it; -> its parts, and refsd's pipeline"""
    tokens, merges, special = bytes_trained()
    tokenizer = qwen2(tokens, merges, [*special, *MARKS])
    pad = tokenizer.convert_tokens_to_ids(MARKS[2])
    config = peer_config(qwen2_5_vl, Qwen25Size(256, 2, 2, 1, 128, 20, len(tokenizer)), QWEN2_5_SECTIONS, 1e6)
    config.image_token_id, vision = pad, config.vision_config
    vision.depth, vision.hidden_size, vision.patch_size, vision.num_heads = 2, 24, PATCH, 2
    vision.window_size, vision.fullatt_block_indexes = 2 * 2 * PATCH, [1]
    parts = SimpleNamespace(
        scheduler=FlowMatchEulerDiscreteScheduler(
            use_dynamic_shifting=True, max_shift=0.9, max_image_seq_len=8192, shift_terminal=0.02
        ),
        vae=peer_vae(WanVAESize(8, (8, 16, 32, 32), 1)),
        text_encoder=Qwen2_5_VLForConditionalGeneration(config).eval(),
        tokenizer=tokenizer,
        transformer=QwenImageTransformer2DModel(
            num_layers=1,
            num_attention_heads=2,
            joint_attention_dim=256,
            attention_head_dim=128,
            zero_cond_t=zero_cond_t,
        ).eval(),
    )
    for seed, name in enumerate(("transformer", "vae", "text_encoder")):
        redraw(getattr(parts, name), seed)
    for name, part in vars(parts).items():
        part.save_pretrained(place / name)
    (place / "model_index.json").write_text(json.dumps({"_class_name": program.__name__}))
    ours = open_pipeline(open_checkpoint(place), Tokenizers(model=place), Arithmetic(FLOAT64), 1 << 30)
    return parts, ours


def pictures_of(place, sizes):
    files = [place / f"{i}.png" for i in range(len(sizes))]
    for i, (file, (high, wide)) in enumerate(zip(files, sizes, strict=True)):
        Image.fromarray(np.random.default_rng(i).integers(0, 256, (high, wide, 3), np.uint8)).save(file)
    return files


def given(files):
    first, *more = (read_image("--ref-image", file) for file in files)
    return ConditioningImages(reference=first, more_references=tuple(more))


@pytest.mark.parametrize(
    ("program", "sizes", "zero_cond_t", "mrope"),
    [
        (QwenImageEditPipeline, [(40, 61)], False, True),
        (QwenImageEditPlusPipeline, [(40, 61)], True, True),
        (QwenImageEditPlusPipeline, [(40, 61), (70, 33)], False, True),
        (QwenImageEditPlusPipeline, [(40, 61), (70, 33), (20, 21)], True, False),
    ],
)
def test_from_words_and_pictures(tmp_path, monkeypatch, program, sizes, zero_cond_t, mrope):
    """mrope: their text encoder is told which tokens are pictures, as transformers 4 found out by itself."""
    files = pictures_of(tmp_path, sizes)
    with float64_throughout():
        parts, ours = folder_of(tmp_path / "model", zero_cond_t, program)
        assert ours.denoiser.params["zero_cond_t"] == zero_cond_t
        processor = Processor(parts.tokenizer)
        pipe = program(
            parts.scheduler, parts.vae, parts.text_encoder, parts.tokenizer, processor, parts.transformer
        )
        if mrope:
            told, pad = parts.text_encoder.forward, parts.text_encoder.config.image_token_id
            parts.text_encoder.forward = lambda input_ids, **more: told(
                input_ids, mm_token_type_ids=(input_ids == pad).to(torch.int32), **more
            )
        else:
            rows = ours.variant.editing["diffusers"]
            rows = {name: one._replace(mrope=False) for name, one in rows.items()}
            ours = ours._replace(variant=ours.variant._replace(editing={"diffusers": rows}))
        plan = resolve(ours, Settings(WORDS, UGLY, 0, 0, 2, 3.5, like="diffusers"), given(files))
        begin = initial_latent(ours, plan, 0)._replace(noise=draw(plan.latent_shape, 1))
        latent = txt2img.sample(ours, plan, txt2img.encode(ours, plan), 0, start=begin)
        mine = latent, np.clip(txt2img.decode(ours, latent), -1, 1)
        high, wide = plan.latent_shape[2:]
        shown = [Image.open(file) for file in files]
        theirs = answer(
            pipe, image=shown[0] if program is QwenImageEditPipeline else shown, prompt=WORDS, negative_prompt=UGLY,
            true_cfg_scale=3.5, num_inference_steps=2, width=plan.width, height=plan.height,
            latents=pipe._pack_latents(of(begin.noise), 1, 16, high, wide),
        )  # fmt: skip
        latents = pipe._unpack_latents(theirs[0], plan.height, plan.width, 8)[:, :, 0]
    assert len(begin.constants) == len(sizes)
    agree(mine, (latents, theirs[1]))
