"""Anima from words to a picture against the blocks of diffusers' pipeline, in float64."""

from types import SimpleNamespace

import numpy as np
import pytest
from diffusers import FlowMatchEulerDiscreteScheduler, image_processor
from diffusers.models.transformers import transformer_cosmos
from diffusers.modular_pipelines.anima.modular_blocks_anima import AnimaAutoBlocks
from float64_peers import distance, draw, float64_throughout, redraw
from record_tokenizers import qwen2, t5
from test_models_anima import peer_anima
from test_models_anima_conditioner import lengthen_rotary, peer_conditioner
from test_models_qwen3 import peer_config
from test_models_vae_wan import peer_vae
from test_pictures import _lifted, agree, of  # noqa: F401
from tiny_tokenizers import bytes_trained, unigram_trained
from transformers import Qwen3Model

from refsd.models.anima_conditioner.network import ConditionerSize
from refsd.models.qwen3.network import Qwen3Size
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

WORDS, UGLY = "a lovely cat, caf\u00e9 \U0001f431", "the hat"
HIDDEN, WIDTH = 40, 24  # of the text encoder, of the conditioner


@pytest.fixture(autouse=True)
def _lifted_for_anima(monkeypatch):
    """NumPy's float32, and torchvision's resizing of the padding mask, which is 0 in any size."""
    monkeypatch.setattr(image_processor, "np", SimpleNamespace(**{**vars(np), "float32": np.float64}))
    functional = SimpleNamespace(resize=lambda mask, size, interpolation: mask[..., : size[0], : size[1]])
    transforms = SimpleNamespace(functional=functional, InterpolationMode=SimpleNamespace(NEAREST="nearest"))
    monkeypatch.setattr(transformer_cosmos, "transforms", transforms, raising=False)


@pytest.fixture
def pipelines(tmp_path):
    """diffusers' blocks and refsd's pipeline of their folder."""
    tokenizer, t5_tokenizer = qwen2(*bytes_trained()), t5(unigram_trained())
    size = ConditionerSize(WIDTH, 2, 12, 60, len(t5_tokenizer), HIDDEN)
    qwen3 = Qwen3Size(HIDDEN, 2, 2, 1, 20, 56, len(tokenizer))
    with float64_throughout():
        parts = {
            "transformer": peer_anima(2, 20, (1.0, 4.0, 4.0), 16, WIDTH),
            "text_conditioner": peer_conditioner(size),
            "vae": peer_vae(WanVAESize(8, (8, 16, 16, 16), 1)),
            "text_encoder": Qwen3Model(peer_config(qwen3)).eval(),
        }
        for i, part in enumerate(parts.values()):
            redraw(part, i)
    lengthen_rotary(parts["text_conditioner"])
    parts |= {
        "scheduler": FlowMatchEulerDiscreteScheduler(shift=3.0),
        "tokenizer": tokenizer,
        "t5_tokenizer": t5_tokenizer,
    }
    for name, part in parts.items():
        part.save_pretrained(tmp_path / name)
    peer = AnimaAutoBlocks().init_pipeline()
    peer.update_components(**parts)
    peer.set_progress_bar_config(disable=True)
    peer.image_processor.postprocess = lambda image, **_: image
    return peer, open_pipeline(open_checkpoint(tmp_path), Tokenizers(model=tmp_path), Arithmetic(FLOAT64), 1 << 30)


@pytest.mark.parametrize(
    ("words", "ugly"), [(WORDS, UGLY), (WORDS, ""), ("the hat on the mat " * 99, "a" * 2000), ("", WORDS)]
)
def test_from_words(pipelines, words, ugly):
    """Prompts of different lengths, without any token, and of more than 512."""
    peer, ours = pipelines
    settings = Settings(words, ugly, 48, 32, 3, like="diffusers")
    plan = resolve(ours, settings)
    with float64_throughout():
        assert peer.guider.guidance_scale == ours.variant.cfg_scale == 4.0
        begin = initial_latent(ours, plan, 0)._replace(noise=draw(plan.latent_shape, 1))
        conditioning = txt2img.encode(ours, plan)
        latent = txt2img.sample(ours, plan, conditioning, 0, start=begin)
        state = peer(
            prompt=words,
            negative_prompt=ugly,
            latents=of(begin.noise)[:, :, None],
            num_inference_steps=3,
            width=plan.width,
            height=plan.height,
            output_type="pt",
        )
    for mine, name in zip(conditioning, ("prompt_embeds", "negative_prompt_embeds"), strict=True):
        assert mine.context.shape[1] == 512 and mine.mask is None
        assert distance(mine.context, state.get(name)) <= 1e-12
    picture = np.clip(txt2img.decode(ours, latent), -1, 1)  # their autoencoder clips
    agree((latent, picture), (state.get("latents")[:, :, 0], state.get("images")))
