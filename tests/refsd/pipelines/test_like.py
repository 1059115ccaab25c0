"""--like comfyui, a1111 and forge: whole latents as the engines' own code drew them, and what is refused.

Recorded in float64 from tiny models (tests/fixtures/record_like_*.py): prompts of two chunks, weighted; a batch of 2;
not square.
"""

from dataclasses import replace
from pathlib import Path

import like_settings as recorded
import numpy as np
import pytest
from small_pictures import EOS, pipeline

from refsd.conventions import CONVENTIONS
from refsd.pipelines import txt2img
from refsd.pipelines.autoencoders import Autoencoder
from refsd.pipelines.conditioning_images import ConditioningImages
from refsd.pipelines.initial_latent import initial_latent
from refsd.pipelines.plan import NO_IMAGES, resolve
from refsd.pipelines.settings import Settings

FIXTURES = Path(__file__).parents[2] / "fixtures"
COMFYUI, A1111 = (np.load(FIXTURES / f"like_{engine}.npz") for engine in ("comfyui", "a1111"))
H, W = (recorded.PIXELS * side for side in recorded.LATENT)
LATENT, MASK = recorded.given()

pytestmark = pytest.mark.usefixtures("letters")


class GivenLatent(Autoencoder):
    """Encodes every picture to one latent, the posterior's mean."""

    def encode(self, image, draw=None, scaled=True):
        assert draw is None
        return LATENT[:1]


def opened(folder, family):
    pipe = pipeline(folder, family)
    clips = {name: one._replace(params={**one.params, "eos": EOS}) for name, one in pipe.encoders.items()}
    return pipe._replace(encoders=clips, autoencoder=GivenLatent(*pipe.autoencoder))


def planned(pipe, run, like, **settings):
    picture = np.zeros((1, 3, H, W))
    images = NO_IMAGES
    if run.strength is not None:
        images = ConditioningImages(picture, MASK if run.masked else None)
    chosen = Settings(
        *(recorded.PROMPT, run.negative, W, H, recorded.STEPS, run.cfg_scale, run.sampler),
        schedule=run.schedule,
        strength=1.0 if run.strength is None else run.strength,
        seed=recorded.SEED,
        batch_count=recorded.BATCH,
        like=like,
        **settings,
    )
    plan = resolve(pipe, chosen, images)
    # SDXL is told the size of a picture of 8 pixels per latent.
    h, w = recorded.LATENT
    return replace(plan, height=8 * h, width=8 * w)


def agree(folder, run, like, truth, **settings):
    pipe = opened(folder, run.family)
    plan = planned(pipe, run, like, **settings)
    conditioning = txt2img.encode(pipe, plan)
    for which in ("cond", "uncond"):
        hidden = getattr(conditioning, which).context[0, ::7]
        expected = truth[f"{run.name} {which}"]
        np.testing.assert_allclose(hidden, expected, rtol=0, atol=1e-12 * max(np.abs(expected).max(), 1e-300))
    noise = np.concatenate([initial_latent(pipe, plan, seed).noise for seed in plan.seeds])
    np.testing.assert_array_equal(noise, truth[f"{run.name} noise"])
    latents = np.concatenate([txt2img.sample(pipe, plan, conditioning, seed) for seed in plan.seeds])
    assert np.linalg.norm(latents - truth[run.name]) <= 1e-12 * np.linalg.norm(truth[run.name])


@pytest.mark.parametrize("run", recorded.RUNS, ids=lambda run: run.name)
def test_comfyui_draws_the_same_latents(folder, run):
    agree(folder, run, "comfyui", COMFYUI, sampler_rng="cpu")


@pytest.mark.parametrize("run", recorded.WEBUI_RUNS, ids=lambda run: run.name)
def test_a1111_draws_the_same_latents(folder, run, monkeypatch):
    """In a size that refsd refuses for it: it was recorded with ComfyUI's UNet, which draws it as diffusers' does."""
    monkeypatch.setitem(CONVENTIONS, "a1111", replace(CONVENTIONS["a1111"], unet_multiple=1))
    agree(folder, run, "a1111", A1111, rng="nv")
