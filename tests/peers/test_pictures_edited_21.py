"""Edits of Qwen-Image 2.1 from words and pictures to a picture, against diffusers' pipeline, in float64."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from diffusers import FlowMatchEulerDiscreteScheduler, QwenImage21Pipeline, image_processor
from float64_peers import draw, float64_throughout, redraw
from PIL import Image
from record_tokenizers import qwen2
from test_models_qwen_image21 import peer_qwen_image21, picture_of
from test_models_qwen_vl import peer_config
from test_models_vae_qwen_image21 import peer_vae
from test_pictures import _lifted, agree, answer, of  # noqa: F401
from test_pictures_edited import MARKS, UGLY, WORDS, given
from tiny_tokenizers import bytes_trained
from transformers import BatchFeature, Qwen3VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from refsd.families import editing
from refsd.models.qwen3.network import Qwen3Size
from refsd.models.qwen_vl import QWEN3_SECTIONS, qwen3_vl
from refsd.models.vae_qwen_image21.network import QwenImage21VAESize
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

SIDE, LEAST = 96, 64 * 64


class Processor:
    """Qwen3VLProcessor: its picture half is transformers' own, its arithmetic in float64."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.pictures = Qwen2VLImageProcessorPil(
            patch_size=16,
            do_rescale=False,
            do_normalize=False,
            size={"shortest_edge": LEAST, "longest_edge": 4096 * 4096},
        )

    def __call__(self, text, images, **told):
        assert all(image.mode == "RGB" for image in images)
        seen = self.pictures(images, return_tensors="pt")
        tokens = [int(grid.prod()) // 4 for grid in seen["image_grid_thw"]]
        whole = []
        for line in text:
            first, *parts = line.split(MARKS[2])
            whole.append(first + "".join(MARKS[2] * n + part for n, part in zip(tokens, parts, strict=True)))
        words = self.tokenizer(whole, **told)
        pad = self.tokenizer.convert_tokens_to_ids(MARKS[2])
        return BatchFeature(
            {
                **words,
                "pixel_values": seen["pixel_values"].double() / 255 * 2 - 1,
                "image_grid_thw": seen["image_grid_thw"],
                "mm_token_type_ids": (words["input_ids"] == pad).int(),
            }
        )

    def apply_chat_template(self, messages, **told):
        return [[0] * 14]


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """Pictures of SIDE x SIDE pixels, in float64."""
    monkeypatch.setattr(editing, "LATENT_AREA", SIDE**2)
    monkeypatch.setattr(editing, "LEAST_3", LEAST)
    monkeypatch.setattr(image_processor, "np", SimpleNamespace(**{**vars(np), "float32": np.float64}))


def folder_of(place):
    """The parts of a folder as diffusers saves it; -> its parts, and refsd's pipeline"""
    tokens, merges, special = bytes_trained()
    tokenizer = qwen2(tokens, merges, [*special, *MARKS])
    config = peer_config(qwen3_vl, Qwen3Size(16, 3, 2, 1, 128, 20, len(tokenizer)), QWEN3_SECTIONS, 5e6)
    config.image_token_id, vision = tokenizer.convert_tokens_to_ids(MARKS[2]), config.vision_config
    vision.depth, vision.hidden_size, vision.patch_size, vision.num_heads = 4, 24, 16, 2
    vision.num_position_embeddings, vision.deepstack_visual_indexes = 16, [0, 2]
    levels = (4, 8, 16, 32, 32), (6, 12, 24, 48, 48)
    parts = SimpleNamespace(
        scheduler=FlowMatchEulerDiscreteScheduler(
            use_dynamic_shifting=True, max_shift=0.9, max_image_seq_len=8192, shift_terminal=0.02
        ),
        vae=peer_vae(QwenImage21VAESize(4, *levels, 1, (False, True, True, True), 5)),
        text_encoder=Qwen3VLForConditionalGeneration(config).eval(),
        tokenizer=tokenizer,
        transformer=peer_qwen_image21(1, (16, 56, 56), 5, 16),
    )
    parts.vae.register_to_config(
        latents_mean=[-0.75, 0.125, 1.5, 0.5, 2.0], latents_std=[2.75, 1.25, 0.5, 3.0, 1.5]
    )
    for seed, name in enumerate(("transformer", "vae", "text_encoder")):
        redraw(getattr(parts, name), seed)
    for name, part in vars(parts).items():
        part.save_pretrained(place / name)
    (place / "model_index.json").write_text(json.dumps({"_class_name": "QwenImage21Pipeline"}))
    ours = open_pipeline(open_checkpoint(place), Tokenizers(model=place), Arithmetic(FLOAT64), 1 << 30)
    return parts, ours


def pictures_of(place, sizes):
    """Files of pictures; the first has alpha."""
    files = [place / f"{i}.png" for i in range(len(sizes))]
    for i, (file, size) in enumerate(zip(files, sizes, strict=True)):
        pixels = np.random.default_rng(i).integers(0, 256, (*size, 3 if i else 4), np.uint8)
        Image.fromarray(pixels).save(file)
    return files


@pytest.mark.parametrize(
    ("sizes", "cfg"), [([(96, 96)], 1.0), ([(70, 121)], 3.5), ([(40, 61), (140, 66), (96, 96)], 2.0)]
)
def test_from_words_and_pictures(tmp_path, sizes, cfg):
    """References of one size and of several, with alpha and without; one that needs no resizing."""
    files = pictures_of(tmp_path, sizes)
    with float64_throughout():
        parts, ours = folder_of(tmp_path / "model")
        pipe = QwenImage21Pipeline(
            parts.scheduler, parts.vae, parts.text_encoder, Processor(parts.tokenizer), parts.transformer
        )
        images = given(files)
        assert images.references[0].shape[1] == 4
        plan = resolve(ours, Settings(WORDS, UGLY, 0, 0, 2, cfg, like="diffusers"), images)
        begin = initial_latent(ours, plan, 0)._replace(noise=draw(plan.latent_shape, 1))
        latent = txt2img.sample(ours, plan, txt2img.encode(ours, plan), 0, start=begin)
        mine = latent, np.clip(txt2img.decode(ours, latent), -1, 1)
        theirs = answer(
            pipe, image=[Image.open(file) for file in files], prompt=WORDS, negative_prompt=UGLY,
            true_cfg_scale=cfg, num_inference_steps=2, output_resolution=SIDE,
            latents=pipe._pack_latents(of(begin.noise), 1, 5, *plan.latent_shape[2:]),
        )  # fmt: skip
    assert len(begin.constants) == len(sizes)
    agree(mine, (picture_of(theirs[0], begin.noise.shape), theirs[1]))
