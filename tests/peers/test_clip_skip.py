"""--clip-skip --like diffusers, guided, against the pipelines running on both prompts, in float64."""

import pytest
import torch
from diffusers import (
    FlowMatchEulerDiscreteScheduler,
    StableDiffusion3Pipeline,
    StableDiffusionPipeline,
    StableDiffusionXLPipeline,
)
from float64_peers import draw, float64_throughout, redraw
from test_models_clip import peer_clip as peer_clip_l
from test_models_mmdit import MMDiTSize, peer_mmdit
from test_models_sdxl import Config, peer_clip, peer_unet
from test_models_unet import peer_unet as peer_unet_sd1
from test_pictures import BIGG, NO_QUANT, SD1, _lifted, agree, answer, euler, of, vae_of  # noqa: F401
from test_tokenizers import MERGES
from transformers import CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer

from refsd.models.clip.network import CLIPSize
from refsd.models.unet.tensors import UNetSize
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT64
from refsd.pipelines import txt2img
from refsd.pipelines.initial_latent import InitialLatent
from refsd.pipelines.pipeline import open_pipeline
from refsd.pipelines.plan import resolve
from refsd.pipelines.prompts import Tokenizers
from refsd.pipelines.settings import Settings
from refsd.samplers.noise import TorchCpu
from refsd.tokenizers.clip_bpe import EOS, vocabulary
from refsd.weights import open_checkpoint

pytestmark = [
    pytest.mark.peer,
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"),
]

WORDS, UGLY = "a lovely cat, caf\u00e9 \U0001f431", "the hat"


@pytest.fixture(autouse=True)
def _text_model(monkeypatch):
    """What diffusers asks of a CLIPTextModel for SD 1's final norm; since transformers 5 it is the model itself."""
    monkeypatch.setattr(CLIPTextModel, "text_model", property(lambda self: self), raising=False)


SMALL = CLIPSize(hidden=64, layers=4, mlp=40)


def tokenizer(pad):
    ids = {token: i for i, token in enumerate(vocabulary(MERGES))}
    return CLIPTokenizer(vocab=ids, merges=list(MERGES), pad_token=pad, model_max_length=77)


def sd1():
    parts = {
        "text_encoder": peer_clip_l(SMALL._replace(hidden=24), 1, EOS),
        "tokenizer": tokenizer("<|endoftext|>"),
    }
    parts |= {"unet": peer_unet_sd1(SD1, 8, 32), "vae": vae_of(4), "scheduler": euler(timestep_spacing="leading")}
    return StableDiffusionPipeline, parts, {"safety_checker": None, "feature_extractor": None}


def pair(kind):
    return {
        "text_encoder": peer_clip(kind, SMALL, EOS, 24),
        "tokenizer": tokenizer("<|endoftext|>"),
        "text_encoder_2": peer_clip(CLIPTextModelWithProjection, SMALL._replace(hidden=BIGG), EOS, 24),
        "tokenizer_2": tokenizer("!"),
    }


def sdxl():
    config = Config(UNetSize(64, (64, 128), (1,), 1, 64 + BIGG), [1, 2], (6, 10), 7, 24, 6)
    vae = vae_of(4, scaling_factor=0.13025)
    parts = pair(CLIPTextModel) | {"unet": peer_unet(config), "vae": vae}
    parts |= {"scheduler": euler(timestep_spacing="leading")}
    return StableDiffusionXLPipeline, parts, {"add_watermarker": False}


def sd3():
    network = peer_mmdit(MMDiTSize(2, 24, 2, 16, 12, context_dim=64 + BIGG + 16, pooled=2 * 24))
    vae = vae_of(16, NO_QUANT, scaling_factor=1.5305, shift_factor=0.0609)
    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
    parts = pair(CLIPTextModelWithProjection) | {"transformer": network, "vae": vae, "scheduler": scheduler}
    return StableDiffusion3Pipeline, parts, {"text_encoder_3": None, "tokenizer_3": None}


@pytest.mark.parametrize("skip", [None, 1])
@pytest.mark.parametrize("family", [sd1, sdxl, sd3])
def test_a_skipped_layer(tmp_path, family, skip):
    """It is the prompt's alone: of the negative prompt every pipeline takes the layer that it always takes."""
    with float64_throughout():
        kind, parts, more = family()
        for seed, (name, part) in enumerate(parts.items()):
            if isinstance(part, torch.nn.Module):
                redraw(part, seed)
            part.save_pretrained(tmp_path / name)
        ours = open_pipeline(open_checkpoint(tmp_path), Tokenizers(model=tmp_path), Arithmetic(FLOAT64), 1 << 30)
        plan = resolve(ours, Settings(WORDS, UGLY, 24, 16, 2, 4.0, clip_skip=skip, like="diffusers"))
        begin = InitialLatent(draw(plan.latent_shape, 1), TorchCpu(0))
        latent = txt2img.sample(ours, plan, txt2img.encode(ours, plan), 0, start=begin)
        theirs = answer(
            kind(**parts, **more), prompt=WORDS, negative_prompt=UGLY, clip_skip=skip, latents=of(begin.noise),
            num_inference_steps=2, guidance_scale=4.0, width=24, height=16,
        )  # fmt: skip
    agree((latent, txt2img.decode(ours, latent)), theirs)
