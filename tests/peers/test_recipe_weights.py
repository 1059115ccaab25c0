"""Recipe weights as their readers see them: diffusers and transformers, and sd-cli at full size."""

import os
import subprocess

import diffusers
import numpy as np
import pytest
import torch
import transformers

from refsd.golden.case import ModelRecipe
from refsd.weights import recipes

pytestmark = pytest.mark.peer


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = recipes.make(ModelRecipe("sd15", "f16", tiny=True), tmp_path_factory.mktemp("tiny"), "diffusers")
    loaded = {}
    for kind, part in (
        (diffusers.UNet2DConditionModel, "unet"),
        (diffusers.AutoencoderKL, "vae"),
        (transformers.CLIPTextModel, "text_encoder"),
    ):
        loaded[part], report = kind.from_pretrained(
            folder, subfolder=part, output_loading_info=True, dtype=torch.float32
        )
        assert not any(report.values()), report
    return loaded


def test_activations_neither_explode_nor_vanish(models):
    g = torch.Generator().manual_seed(0)
    with torch.no_grad():
        hidden = models["text_encoder"](torch.tensor([[49406, 320, 2368] + [49407] * 74])).last_hidden_state
        eps = models["unet"](torch.randn(1, 4, 16, 16, generator=g), torch.tensor([500]), hidden).sample
        picture = models["vae"].decode(torch.randn(1, 4, 8, 8, generator=g) / 0.18215).sample
        latent = models["vae"].encode(picture.clamp(-1, 1)).latent_dist.mean
    for y in (hidden, eps, picture, latent):
        assert 0.2 < y.std() < 2, y.std()


def test_every_input_matters(models):
    """A context, a timestep or a token that made no difference would hide a bug in it."""
    with torch.no_grad():
        encode = lambda token: (
            models["text_encoder"](torch.tensor([[49406, token] + [49407] * 75])).last_hidden_state
        )
        x = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(0))
        a, b = encode(320), encode(2368)
        unet = lambda t, hidden: models["unet"](x, torch.tensor([t]), hidden).sample
        base = unet(500, a)
        for other in (unet(500, b), unet(400, a)):
            assert (other - base).norm() > 0.01 * base.norm()


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of torch in diffusers
def test_the_pipeline_opens_the_folder(tmp_path):
    folder = recipes.make(ModelRecipe("sd15", "f16", tiny=True), tmp_path, "diffusers")
    pipeline = diffusers.StableDiffusionPipeline.from_pretrained(folder, tokenizer=None, dtype=torch.float32)
    hidden = torch.zeros(1, 77, 128)
    picture = pipeline(
        prompt_embeds=hidden,
        negative_prompt_embeds=hidden,
        num_inference_steps=1,
        width=64,
        height=64,
        output_type="np",
    ).images
    assert picture.shape == (1, 64, 64, 3) and np.isfinite(picture).all()


@pytest.mark.slow
@pytest.mark.parametrize("type", ["f16", "q8_0", "q4_k"])
def test_sd_cli_draws_with_them(tmp_path, type):
    """$REFSD_SD_CLI names sd-cli."""
    suffix = "safetensors" if type == "f16" else "gguf"
    model = recipes.make(ModelRecipe("sd15", type), tmp_path / f"sd15.{suffix}")
    options = ["-p", "a cat", "-W", "64", "-H", "64", "--steps", "1", "-o", tmp_path / "a.png", "-v"]
    done = subprocess.run([os.environ["REFSD_SD_CLI"], "-m", model, *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert (tmp_path / "a.png").stat().st_size > 1000
    log = done.stdout + done.stderr
    assert "Version: SD 1.x" in log
    assert "unknown tensor" not in log and "not in model file" not in log
