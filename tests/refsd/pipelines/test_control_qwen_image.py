"""Qwen-Image's ControlNet in txt2img: its hint, the words that it sees, what does not fit."""

import numpy as np
import pytest
import small_families
import small_pictures as small
from safetensors.numpy import save_file
from small_pictures import pipeline

from refsd.models.qwen_image_controlnet.network import QwenImageControlSize
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT64
from refsd.pipelines import txt2img
from refsd.pipelines.conditioning_images import ConditioningImages
from refsd.pipelines.initial_latent import initial_latent
from refsd.pipelines.loaded_component import LoadedComponent
from refsd.pipelines.pipeline import open_pipeline
from refsd.pipelines.plan import resolve
from refsd.pipelines.prompts import Tokenizers
from refsd.pipelines.settings import Settings
from refsd.samplers.noise import RNGS
from refsd.weights import open_checkpoint

pytestmark = [pytest.mark.jitted, pytest.mark.usefixtures("letters")]

PICTURE = np.random.default_rng(0).random((1, 3, 16, 32))
SIZE = QwenImageControlSize(128, 1, 128, 96, 64, 16, 256, frequencies=16)


def planned(pipe, like="diffusers", **more):
    settings = Settings("a cat", "ugly words", 32, 16, 1, 3.0, like=like, rng="cpu", seed=5, **more)
    return resolve(pipe, settings, ConditioningImages(control=PICTURE))


@pytest.fixture(scope="module")
def pipe(folder):
    """Of a small Qwen-Image, whose time has 256 channels where SIZE's has 16: each network has its own."""
    checkpoint = open_checkpoint(
        None, small.files(folder / "qwen-image-controlled", "qwen-image", **{"qwen-image-controlnet": SIZE})
    )
    return open_pipeline(checkpoint, Tokenizers(), Arithmetic(FLOAT64), 1 << 30)


def test_the_hint_is_drawn_before_the_noise(pipe):
    plan = planned(pipe)
    start = initial_latent(pipe, plan, 5)
    rng = RNGS["cpu"](5)
    latent = pipe.autoencoder.encode(2 * PICTURE - 1, rng.randn)
    np.testing.assert_array_equal(start.constants["hint"], latent)
    np.testing.assert_array_equal(start.noise, rng.randn(plan.latent_shape))
    assert np.abs(latent - pipe.autoencoder.encode(2 * PICTURE - 1)).max() > 1e-3


def test_the_call_without_the_prompt_has_the_others_hints(pipe):
    plan = planned(pipe, control_strength=0.7)
    both, heard = txt2img.encode(pipe, plan), {}
    start = initial_latent(pipe, plan, 5)
    txt2img.sample(pipe, plan, both, 5, listener=lambda name, x: heard.update({name: np.array(x)}), start=start)
    assert both.uncond is not None and both.cond.context.shape != both.uncond.context.shape
    inputs = {"x": start.noise, "timesteps": np.array([1.0]), "hint": start.constants["hint"]}
    words = {"hint_context": both.cond.context}
    for name, text in {"cond": both.cond, "uncond": both.uncond}.items():
        out = pipe.denoiser({**inputs, **words, "context": text.context}, "by hand", control_strength=0.7)["out"]
        np.testing.assert_allclose(heard[f"calls.0.{name}"], out, rtol=1e-9, atol=1e-12)
    own = pipe.denoiser({**inputs, "context": both.uncond.context}, "by hand", control_strength=0.7)["out"]
    assert np.abs(own - heard["calls.0.uncond"]).max() > 1e-6


@pytest.mark.parametrize(("start", "end", "within"), [(0.0, 1.0, "1111"), (0.25, 0.75, "0110"), (0.3, 0.7, "0000")])
def test_steps_with_the_controlnet(pipe, monkeypatch, start, end, within):
    """A step counts if all of it lies within."""
    settings = Settings("a cat", "", 32, 16, 4, 1.0, like="diffusers", control_start=start, control_end=end)
    plan = resolve(pipe, settings._replace(control_strength=0.5), ConditioningImages(control=PICTURE))
    strengths = []

    def heard(self, inputs, source, **params):
        strengths.append(params["control_strength"])
        return {"out": 0 * inputs["x"]}

    conditioning, begin = txt2img.encode(pipe, plan), initial_latent(pipe, plan, 5)
    monkeypatch.setattr(LoadedComponent, "__call__", heard)
    txt2img.sample(pipe, plan, conditioning, 5, start=begin)
    assert strengths == [0.5 * int(step) for step in within]


def test_refused(pipe, folder, tmp_path):
    hint = initial_latent(pipe, planned(pipe), 5).constants["hint"]
    inputs = {"x": hint, "timesteps": np.array([1.0]), "context": np.ones((1, 3, 256))}
    with pytest.raises(BadInput, match="a ControlNet's hint and pictures to edit do not go together"):
        pipe.denoiser({**inputs, "hint": hint, "reference": hint}, "here")
    with pytest.raises(BadInput, match=r"--control-start 0\.5, --control-end 0\.5: expected the start below"):
        planned(pipe, control_start=0.5, control_end=0.5)
    alone = pipeline(folder, "qwen-image")
    with pytest.raises(BadInput, match="no ControlNet was given; name one with --control-net"):
        alone.denoiser({**inputs, "hint": hint}, "here")
    narrow = {"qwen-image-controlnet": SIZE._replace(context_dim=40)}
    other = small.files(tmp_path / "other", "qwen-image", **narrow)
    with pytest.raises(BadInput, match=r'"txt_in.weight" has shape \[128, 40\]; Qwen-Image has \[128, 256\]'):
        open_pipeline(open_checkpoint(None, other), Tokenizers(), Arithmetic(FLOAT64))


def test_flux_s_controlnet_is_no_qwen_images(tmp_path):
    arrays = small_families.weights("qwen-image-controlnet", SIZE)
    arrays = {name: array for name, array in arrays.items() if not name.startswith("txt_norm")}
    save_file(arrays, tmp_path / "flux.safetensors")
    with pytest.raises(BadInput, match="does not run a transformer's ControlNet"):
        open_checkpoint(tmp_path / "flux.safetensors")
