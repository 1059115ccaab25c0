"""refsd sigmas --model against the levels that diffusers' pipelines set, in float64, for sizes and steps."""

import functools
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from diffusers import (
    ChromaPipeline,
    ErnieImagePipeline,
    FlowMatchEulerDiscreteScheduler,
    Flux2KleinPipeline,
    Flux2Pipeline,
    FluxPipeline,
    Krea2Pipeline,
    Lumina2Pipeline,
    MiniMaxH3Scheduler,
    QwenImage21Pipeline,
    QwenImageEditPlusPipeline,
    QwenImageLayeredPipeline,
    QwenImagePipeline,
    StableDiffusion3Pipeline,
    ZImagePipeline,
)
from diffusers.modular_pipelines.anima.before_denoise import AnimaSetTimestepsStep
from diffusers.modular_pipelines.flux3.before_denoise import Flux3SetTimestepsStep
from diffusers.modular_pipelines.ideogram4.before_denoise import Ideogram4SetTimestepsStep
from float64_peers import float64_throughout
from PIL import Image
from test_pictures import _lifted  # noqa: F401
from typer.testing import CliRunner

from refsd.cli import app
from refsd.families import VARIANTS
from refsd.families.editing import LATENT_AREA, of_area

pytestmark = [
    pytest.mark.peer,
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"),
]

BY_SIZE = {"use_dynamic_shifting": True}
QWEN = {**BY_SIZE, "max_shift": 0.9, "max_image_seq_len": 8192, "shift_terminal": 0.02}
TEXT = {"prompt_embeds": torch.ones(1, 3, 8)}
POOLED = {**TEXT, "pooled_prompt_embeds": torch.ones(1, 8)}
MASKED = {**TEXT, "prompt_embeds_mask": torch.ones(1, 3, dtype=torch.long)}


class Timesteps(Exception):
    """Ends a pipeline's call before its network runs."""


class Network(torch.nn.Module):
    """What the pipelines ask of a network before they call it."""

    dtype = torch.float64
    device = torch.device("cpu")

    def __init__(self, **config):
        super().__init__()
        self.config = SimpleNamespace(
            **{"in_channels": 64, "guidance_embeds": False, "patch_size": 2, "sample_size": 128} | config
        )
        self.in_channels = self.config.in_channels


class Processor:
    """Qwen3-VL's, of which the pipeline asks two numbers when it is made."""

    tokenizer = SimpleNamespace(encode=lambda text: [0])

    def apply_chat_template(self, messages, **named):
        return [[0]]


class Autoencoder(Network):
    """The Qwen-Image autoencoder's sizes, and latents of zeros."""

    temperal_downsample = (False, True, True)

    def __init__(self):
        super().__init__(z_dim=16, latents_mean=[0.0] * 16, latents_std=[1.0] * 16)

    def encode(self, x):
        latent = torch.zeros(1, 16, 1, x.shape[-2] // 8, x.shape[-1] // 8, dtype=torch.float64)
        return SimpleNamespace(latents=latent)


def from_words(kind, given, none, **config):
    """Return a call of a pipeline. none: its other parts, which it does not need"""

    def call(scheduler, **size):
        pipe = kind(scheduler=scheduler, transformer=Network(**config), **dict.fromkeys(none))
        pipe(**given, **size)

    return call


def from_a_picture(kind, none, **config):
    def call(scheduler, width, height, num_inference_steps):
        parts = {"vae": Autoencoder(), "text_encoder": Network(), **dict.fromkeys(none)}
        pipe = kind(scheduler=scheduler, transformer=Network(**config), **parts)
        pipe.encode_prompt = lambda **_: (torch.ones(1, 3, 8), None)
        size = {"height": height, "width": width} if kind is QwenImageEditPlusPipeline else {"resolution": 1024}
        picture = Image.new("RGB" if size.get("width") else "RGBA", (width, height))
        pipe(picture, prompt="a", num_inference_steps=num_inference_steps, **size)

    return call


def in_blocks(kind):
    """Return a call of a pipeline's block. Ideogram 4's reads the size, and wants a scale for each step."""

    def call(scheduler, num_inference_steps, **size):
        pipe = kind().init_pipeline()
        pipe.update_components(scheduler=scheduler)
        given = {
            **size,
            "guidance_schedule": [7.0] * num_inference_steps,
            "num_inference_steps": num_inference_steps,
        }
        pipe(**{name: value for name, value in given.items() if name in pipe.blocks.input_names})

    return call


LLM = ("vae", "text_encoder", "tokenizer")
TWO = (*LLM, "text_encoder_2", "tokenizer_2")
THREE = (*TWO, "text_encoder_3", "tokenizer_3")
# Variant -> options of the released scheduler, call of the pipeline
MODELS = {
    "flux-dev": (BY_SIZE, from_words(FluxPipeline, POOLED, TWO)),
    "flux-schnell": ({}, from_words(FluxPipeline, POOLED, TWO)),
    "chroma": (
        {},
        from_words(
            ChromaPipeline,
            {**TEXT, "prompt_attention_mask": torch.ones(1, 3), "guidance_scale": 1.0},
            LLM,
        ),
    ),
    "flux2-dev": (BY_SIZE, from_words(Flux2Pipeline, TEXT, LLM, in_channels=128)),
    "flux2-klein": (
        BY_SIZE,
        from_words(Flux2KleinPipeline, {**TEXT, "guidance_scale": 1.0}, LLM, in_channels=128),
    ),
    "flux3": ({"shift": 6.93}, in_blocks(Flux3SetTimestepsStep)),
    "flux3-distilled": ({"shift": 6.93}, in_blocks(Flux3SetTimestepsStep)),
    "anima": ({"shift": 3.0}, in_blocks(AnimaSetTimestepsStep)),
    "ideogram4": ({}, in_blocks(Ideogram4SetTimestepsStep)),
    "krea2": (
        {**BY_SIZE, "max_image_seq_len": 6400},
        from_words(Krea2Pipeline, {**MASKED, "prompt_embeds": torch.ones(1, 3, 2, 8), "guidance_scale": 0.0}, LLM),
    ),
    "zimage": (
        {"shift": 3.0},
        from_words(ZImagePipeline, {"prompt_embeds": [torch.ones(3, 8)], "guidance_scale": 0.0}, LLM),
    ),
    "ernie-image": (
        {"shift": 3.0},
        from_words(
            ErnieImagePipeline,
            {"prompt_embeds": [torch.ones(3, 8)], "guidance_scale": 1.0},
            ("vae", "text_encoder", "tokenizer"),
            in_channels=128,
        ),
    ),
    "sd3": ({"shift": 3.0}, from_words(StableDiffusion3Pipeline, {**POOLED, "guidance_scale": 1.0}, THREE)),
    "lumina2": (
        {"shift": 6.0},
        from_words(
            Lumina2Pipeline,
            {**TEXT, "prompt_attention_mask": torch.ones(1, 3), "guidance_scale": 1.0},
            LLM,
        ),
    ),
    "qwen-image": (QWEN, from_words(QwenImagePipeline, {**MASKED, "true_cfg_scale": 1.0}, LLM)),
    "qwen-image-edit-2511": (QWEN, from_a_picture(QwenImageEditPlusPipeline, ("tokenizer", "processor"))),
    "qwen-image-layered": (QWEN, from_a_picture(QwenImageLayeredPipeline, ("tokenizer", "processor"))),
    "qwen-image21": (
        QWEN,
        from_words(functools.partial(QwenImage21Pipeline, processor=Processor()), MASKED, ("vae", "text_encoder")),
    ),
}
VARIANT_OF_SAME_FLOW = {
    "sd35-medium": "sd3",
    "sd35-large": "sd3",
    "flux-fill": "flux-dev",
    "flux-control": "flux-dev",
}
SIZES = [(1024, 1024, 4), (1360, 768, 9), (2048, 1536, 50), (1000, 760, 7)]
EVEN_ONLY = (
    "krea2",
    "zimage",
    "sd3",
    "lumina2",
    "ernie-image",
    "ideogram4",
)  # diffusers refuses other sizes, or rounds them up


def theirs(model, width, height, steps):
    """The sigmas that the pipeline's scheduler has where its network is called first."""
    options, call = MODELS[model]
    with float64_throughout():
        scheduler = FlowMatchEulerDiscreteScheduler(**options)
    original = scheduler.set_timesteps

    @functools.wraps(original)
    def set_timesteps(*args, **named):
        original(*args, **named)
        raise Timesteps

    scheduler.set_timesteps = set_timesteps
    with float64_throughout(), pytest.raises(Timesteps):
        call(scheduler, width=width, height=height, num_inference_steps=steps)
    return scheduler.sigmas.numpy(), scheduler.timesteps.numpy()


@pytest.mark.parametrize(("width", "height", "steps"), SIZES)
@pytest.mark.parametrize("model", MODELS)
def test_levels(model, width, height, steps):
    if (width, height) == (1000, 760) and model in EVEN_ONLY:
        width, height = 1008, 752
    if model == "qwen-image-layered":
        height, width = of_area(LATENT_AREA, (height, width))
    flags = ["--model", model, "--like", "diffusers", "--steps", steps, "-W", width, "-H", height, "--json"]
    shown = CliRunner().invoke(app, ["sigmas", *map(str, flags)])
    assert shown.exit_code == 0, shown.output
    sigmas, timesteps = theirs(model, width, height, steps)
    np.testing.assert_allclose(json.loads(shown.output)["sigmas"], sigmas, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(timesteps, 1000 * sigmas[:-1], rtol=1e-12)


@pytest.mark.parametrize("steps", [4, 49])
def test_minimax_h3(steps):
    """Its scheduler counts the last level, 0, among the steps; its time runs from noise, 0, to data, 1."""
    shown = CliRunner().invoke(
        app, ["sigmas", *f"--model minimax-h3 --like diffusers --steps {steps} --json".split()]
    )
    assert shown.exit_code == 0, shown.output
    scheduler = MiniMaxH3Scheduler()
    scheduler.set_timesteps(steps + 1)  # in float32, whatever torch's default type
    ours = json.loads(shown.output)
    np.testing.assert_allclose(ours["sigmas"], scheduler.sigmas.numpy(), rtol=3e-7)
    np.testing.assert_allclose(ours["timesteps"][:-1], scheduler.timesteps.numpy(), rtol=3e-7, atol=1e-7)


def test_every_flow_is_held():
    flows = {name for name, variant in VARIANTS.items() if variant.flow is not None}
    assert flows == {*MODELS, *VARIANT_OF_SAME_FLOW, "minimax-h3", "chroma-radiance", "wan", "ltx2", "ltx23"}
    for name, other in VARIANT_OF_SAME_FLOW.items():
        assert VARIANTS[name].flow is VARIANTS[other].flow
