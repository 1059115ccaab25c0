"""Schedulers of diffusers with few options or none, stepping in float64: iPNDM; EDM's range."""

import importlib

import numpy as np
import pytest
import torch
from diffusers import EDMEulerScheduler, IPNDMScheduler, StableDiffusionPipeline
from diffusers_steps import set_to
from float64_peers import float64_throughout

from refsd.conventions import PROMPT_CARDS
from refsd.samplers import SAMPLERS
from refsd.samplers.levels import EdmLevels
from refsd.samplers.noise import Philox
from refsd.samplers.parameterization import V, denoiser
from refsd.samplers.schedules import SCHEDULES

pytestmark = [
    pytest.mark.peer,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:__array_wrap__ must accept:DeprecationWarning"),
]

SD = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}
SHAPE = (2, 4, 6, 5)


def network(x, t):
    module = torch if isinstance(x, torch.Tensor) else np
    return 0.9 * module.tanh(x + 0.3) + 0.1 * x * (1 + float(t) / 999)


def stepped(scheduler, x: np.ndarray, monkeypatch, told=None) -> np.ndarray:
    """Where diffusers ends from x in its own scale, with our noise. told: timestep -> what the network is told"""
    rng = Philox(7)
    draw = lambda shape, **_: torch.from_numpy(rng.randn(tuple(shape))).double()
    monkeypatch.setattr(importlib.import_module(type(scheduler).__module__), "randn_tensor", draw, raising=False)
    y = torch.from_numpy(x).double()
    for t in scheduler.timesteps:
        scaled = scheduler.scale_model_input(y, t) if hasattr(scheduler, "scale_model_input") else y
        y = scheduler.step(network(scaled, told(t) if told else t), t, y, return_dict=False)[0]
    return y.numpy()


def close(mine, theirs, bound=1e-10):
    assert np.linalg.norm(mine - theirs) <= bound * np.linalg.norm(theirs)


class Told:
    """Levels of a schedule that come with what the network is told."""

    def __init__(self, sigmas, times):
        self.times = dict(zip(sigmas.tolist(), times, strict=False))

    def to_t(self, sigma):
        return self.times[sigma]


def test_ipndm():
    """It takes v. Its own schedule: the tangent of an angle, from infinity; seen from its second level on."""
    with float64_throughout():
        scheduler = IPNDMScheduler()
        scheduler.set_timesteps(11)
        alphas, betas = scheduler.alphas.double(), scheduler.betas.double()
        scheduler.alphas, scheduler.betas = alphas[1:], betas[1:]
        scheduler.timesteps = scheduler.timesteps[1:]
        used = (scheduler.betas / scheduler.alphas).numpy()
        x = Philox(42).randn(SHAPE).astype(np.float64) * used[0]
        y, times = torch.from_numpy(x / np.sqrt(used[0] ** 2 + 1)), scheduler.timesteps.tolist()
        for t in scheduler.timesteps:
            y = scheduler.step(network(y, t), t, y, return_dict=False)[0]
        mine = SAMPLERS["ipndm"](denoiser(network, Told(used, times), V), x, used)
    close(mine, y.numpy())


@pytest.mark.parametrize("schedule", ["karras", "exponential"])
def test_the_range_of_edm(schedule):
    """EDM's range is a table's ends; its network is told ln(sigma) / 4."""
    scheduler, levels = set_to(EDMEulerScheduler, 9, {"sigma_schedule": schedule}), EdmLevels(0.002, 80.0)
    sigmas = SCHEDULES[schedule](9, levels)
    np.testing.assert_allclose(scheduler.sigmas.numpy(), sigmas, rtol=1e-12)
    np.testing.assert_allclose(scheduler.timesteps.numpy(), [levels.to_t(s) for s in sigmas[:-1]], rtol=1e-12)


@pytest.mark.parametrize(("said", "layer"), [(None, 1), (1, 2), (2, 3)])
def test_clip_skip(said, layer):
    """Which of the hidden states the pipeline takes: 0 .. 4, the last layer's being 4."""
    states = tuple(torch.full((1, 77, 3), float(i)) for i in range(5))

    class Encoder:
        dtype, config = torch.float32, type("Config", (), {"use_attention_mask": False})()
        text_model = type("Model", (), {"final_layer_norm": staticmethod(lambda x: x)})()

        def __call__(self, ids, attention_mask=None, output_hidden_states=False):
            return (states[-1], None, states) if output_hidden_states else (states[-1],)

    class Tokenizer:
        model_max_length = 77

        def __call__(self, *_args, **_options):
            return type("Ids", (), {"input_ids": torch.zeros((1, 77), dtype=torch.long), "attention_mask": None})()

    pipeline = StableDiffusionPipeline.__new__(StableDiffusionPipeline)
    object.__setattr__(pipeline, "text_encoder", Encoder())
    object.__setattr__(pipeline, "tokenizer", Tokenizer())
    object.__setattr__(pipeline, "unet", None)
    object.__setattr__(pipeline, "maybe_convert_prompt", lambda prompt, _: prompt)
    taken, _ = pipeline.encode_prompt("a cat", "cpu", 1, False, clip_skip=said)
    assert taken.unique().tolist() == [float(5 - layer)]
    assert PROMPT_CARDS["diffusers"].layer(said, 1) == layer
