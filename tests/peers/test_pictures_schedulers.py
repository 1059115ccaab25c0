"""A folder's scheduler_config.json, under each class that is read, against diffusers' pipelines in float64."""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from diffusers import (
    DDIMScheduler,
    DPMSolverMultistepScheduler,
    EulerAncestralDiscreteScheduler,
    EulerDiscreteScheduler,
    HeunDiscreteScheduler,
    PNDMScheduler,
    StableDiffusionImg2ImgPipeline,
    StableDiffusionPipeline,
    StableDiffusionXLPipeline,
)
from diffusers.schedulers import (
    scheduling_ddim,
    scheduling_dpmsolver_multistep,
    scheduling_euler_ancestral_discrete,
    scheduling_euler_discrete,
    scheduling_heun_discrete,
    scheduling_pndm,
)
from float64_peers import distance, draw, float64_throughout, redraw
from test_models_sdxl import Config, peer_unet
from test_models_unet import peer_unet as peer_unet_sd1
from test_pictures import BIGG, SD1, encoders, of, vae_of

from refsd.conventions.diffusers import PICTURES as DIFFUSERS
from refsd.families.family import Condition, Encoded, EncodedPrompt
from refsd.models.unet.tensors import UNetSize
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT64
from refsd.pipelines import txt2img
from refsd.pipelines.conditioning_images import ConditioningImages
from refsd.pipelines.initial_latent import InitialLatent
from refsd.pipelines.pipeline import open_pipeline
from refsd.pipelines.plan import resolve
from refsd.pipelines.prompts import Tokenizers
from refsd.pipelines.settings import Settings
from refsd.pipelines.txt2img import Conditioning
from refsd.samplers.noise import RNGS, TorchCpu
from refsd.weights import detect, open_checkpoint

pytestmark = [
    pytest.mark.peer,
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # steps_offset, clip_sample: their pipeline corrects them
]
SEED = 7
BETAS = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}
COND, UNCOND = draw((1, 7, 24), 2), draw((1, 7, 24), 3)
TEXTS, POOLED = draw((2, 7, 40), 2), draw((2, 56), 3)
IMAGE = np.abs(np.sin(draw((1, 3, 16, 24), 11)))


class _Wide(TorchCpu):
    """As torch draws for float64."""

    def randn(self, shape):
        return super().randn(shape, np.float64)


@pytest.fixture(autouse=True)
def _lifted(monkeypatch):
    """The schedulers' float32 tables, and what these tests make bigG's width."""
    wide = SimpleNamespace(**{**vars(np), "float32": np.float64})
    for module in (
        scheduling_ddim,
        scheduling_dpmsolver_multistep,
        scheduling_euler_ancestral_discrete,
        scheduling_euler_discrete,
        scheduling_heun_discrete,
        scheduling_pndm,
    ):
        monkeypatch.setattr(module, "np", wide)
    monkeypatch.setitem(RNGS, "cpu", _Wide)
    monkeypatch.setattr(detect, "_BIGG", BIGG)


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """Family -> folder without a scheduler, UNet, autoencoder."""
    made = {}
    xl = Config(UNetSize(64, (64, 128), (1,), 1, 40), [1, 2], (6, 10), 7, 56, 6)
    for family, unet, names in (
        ("sd15", lambda: peer_unet_sd1(SD1, 8, 32), ["clip"]),
        ("sdxl", lambda: peer_unet(xl), ["clip", "clip_g"]),
    ):
        folder = tmp_path_factory.mktemp(family)
        with float64_throughout():
            network, vae = unet(), vae_of(4)
            redraw(network, 4)
            redraw(vae, 5)
            network.save_pretrained(folder / "unet")
            vae.save_pretrained(folder / "vae")
            encoders(folder, *names)
        network.register_to_config(sample_size=64)  # which their image-to-image pipeline looks at, and does not use
        made[family] = folder, network, vae
    return made


def opened(folder, kind, config):
    """The scheduler, and refsd's pipeline of the folder with it; the file has what the config says, and no more."""
    shutil.rmtree(folder / "scheduler", ignore_errors=True)
    (folder / "scheduler").mkdir()
    written = {"_class_name": kind.__name__, **BETAS, **config}
    (folder / "scheduler" / "scheduler_config.json").write_text(json.dumps(written))
    ours = open_pipeline(open_checkpoint(folder), Tokenizers(), Arithmetic(FLOAT64), 1 << 30)
    return kind(**BETAS, **config), ours


def sd15(parts, kind, config, sampler=None, n=3, image=None, strength=1.0):
    """Latents of both."""
    folder, unet, vae = parts["sd15"]
    settings = Settings("", "", 24, 16, n, 4.0, sampler, rng="cpu", like="diffusers", strength=strength, seed=SEED)
    given = {"prompt_embeds": of(COND), "negative_prompt_embeds": of(UNCOND), "num_inference_steps": n}
    with float64_throughout():
        scheduler, ours = opened(folder, kind, config)
        plan = resolve(ours, settings, ConditioningImages(init=image))
        if image is None:
            start = InitialLatent(draw(plan.latent_shape, 1), _Wide(SEED))
            pipeline, given = (
                StableDiffusionPipeline,
                given | {"latents": of(start.noise), "width": 24, "height": 16},
            )
        else:
            start = None
            pipeline, given = StableDiffusionImg2ImgPipeline, given | {"image": of(image), "strength": strength}
        pipe = pipeline(vae, None, None, unet, scheduler, None, None, requires_safety_checker=False)
        pipe.set_progress_bar_config(disable=True)
        generator = torch.Generator().manual_seed(SEED)
        theirs = pipe(**given, guidance_scale=4.0, generator=generator, output_type="latent").images
        conditioning = Conditioning(Condition(COND), Condition(UNCOND))
        mine = txt2img.sample(ours, plan, conditioning, SEED, start=start)
    return mine, theirs


def sdxl(parts, kind, config, n=3):
    folder, unet, vae = parts["sdxl"]
    with float64_throughout():
        scheduler, ours = opened(folder, kind, config)
        plan = resolve(ours, Settings("", "", 24, 16, n, 4.0, rng="cpu", like="diffusers", seed=SEED))
        start = InitialLatent(draw(plan.latent_shape, 1), _Wide(SEED))
        pipe = StableDiffusionXLPipeline(vae, None, None, None, None, unet, scheduler, add_watermarker=False)
        pipe.set_progress_bar_config(disable=True)
        theirs = pipe(
            prompt_embeds=of(TEXTS[:1]), negative_prompt_embeds=of(TEXTS[1:]), pooled_prompt_embeds=of(POOLED[:1]),
            negative_pooled_prompt_embeds=of(POOLED[1:]), latents=of(start.noise), num_inference_steps=n,
            guidance_scale=4.0, width=24, height=16, output_type="latent",
        ).images  # fmt: skip
        seen = np.ones((1, 7), np.int64)
        made = []
        for text, one in zip(TEXTS, POOLED, strict=True):
            encoded = {
                "clip": Encoded(text[None, :, :16], None, seen),
                "clip_g": Encoded(text[None, :, 16:], one[None], seen),
            }
            prompt = EncodedPrompt(encoded, ours.denoiser.module, (16, 24), DIFFUSERS)
            made.append(ours.variant.join(prompt))
        mine = txt2img.sample(ours, plan, Conditioning(*made), SEED, start=start)
    return mine, theirs


FLAGGED = EulerDiscreteScheduler, DPMSolverMultistepScheduler, HeunDiscreteScheduler
CLASSES = (DDIMScheduler, *FLAGGED, PNDMScheduler, EulerAncestralDiscreteScheduler)
SPACINGS = "linspace", "leading", "trailing"
# What these have no default for that is sampled.
NEEDED = {PNDMScheduler: {"skip_prk_steps": True}}


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize(
    ("spacing", "prediction"),
    [(None, "epsilon"), ("linspace", "v_prediction"), ("leading", "epsilon"), ("trailing", "v_prediction")],
)
def test_timestep_spacing_and_prediction_type(parts, kind, spacing, prediction):
    """Without a spacing it is the class's own."""
    config = NEEDED.get(kind, {}) | {"prediction_type": prediction}
    config |= {} if spacing is None else {"timestep_spacing": spacing}
    assert distance(*sd15(parts, kind, config)) <= 1e-12


@pytest.mark.parametrize("kind", FLAGGED)
@pytest.mark.parametrize("flag", ["use_karras_sigmas", "use_exponential_sigmas", "use_beta_sigmas"])
@pytest.mark.parametrize("spacing", ["linspace", "leading"])
def test_sigmas_of_a_flag(parts, kind, flag, spacing):
    assert distance(*sd15(parts, kind, {flag: True, "timestep_spacing": spacing}, n=5)) <= 1e-12


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("offset", [None, 3])
def test_steps_offset(parts, kind, offset):
    """Of SDXL as the folder says; of SD 1 always 1."""
    config = (
        NEEDED.get(kind, {})
        | {"timestep_spacing": "leading"}
        | ({} if offset is None else {"steps_offset": offset})
    )
    config |= {"clip_sample": False} if kind is DDIMScheduler else {}
    assert kind is EulerAncestralDiscreteScheduler or distance(*sdxl(parts, kind, config)) <= 1e-12
    assert distance(*sd15(parts, kind, config)) <= 1e-12


@pytest.mark.parametrize(
    ("kind", "spacing"),
    [
        (EulerDiscreteScheduler, "leading"),
        (DPMSolverMultistepScheduler, "leading"),
        (DPMSolverMultistepScheduler, "linspace"),
        (DDIMScheduler, "leading"),
    ],
)
def test_zero_terminal_snr(parts, kind, spacing):
    config = {"rescale_betas_zero_snr": True, "timestep_spacing": spacing, "prediction_type": "v_prediction"}
    assert distance(*sd15(parts, kind, config)) <= 1e-12


@pytest.mark.parametrize("kind", [DDIMScheduler, PNDMScheduler])
@pytest.mark.parametrize("to_one", [True, False])
def test_set_alpha_to_one(parts, kind, to_one):
    config = NEEDED.get(kind, {}) | {"set_alpha_to_one": to_one}
    assert distance(*sd15(parts, kind, config)) <= 1e-12


@pytest.mark.parametrize("kind", [DDIMScheduler, *FLAGGED])
@pytest.mark.parametrize("spacing", SPACINGS)
def test_a_part_of_the_schedule(parts, kind, spacing):
    mine, theirs = sd15(parts, kind, {"timestep_spacing": spacing}, n=5, image=IMAGE, strength=0.6)
    assert distance(mine, theirs) <= 1e-12


@pytest.mark.parametrize("kind", [DDIMScheduler, DPMSolverMultistepScheduler])
def test_a_sampler_that_the_user_names_reads_the_same_file(parts, kind):
    """As their pipelines do with Scheduler.from_config: the file is another class's."""
    folder, *_ = parts["sd15"]
    config = {"timestep_spacing": "trailing", "use_karras_sigmas": True}
    with float64_throughout():
        _, ours = opened(folder, EulerDiscreteScheduler, config)
    sampler = {"DDIMScheduler": "ddim_strided"}.get(kind.__name__, "dpm++2m")
    plan = resolve(ours, Settings("", "", 24, 16, 3, sampler=sampler, like="diffusers"))
    expected = kind.from_config({**BETAS, **config, "_class_name": "EulerDiscreteScheduler"})
    expected.set_timesteps(3)
    told = [plan.levels.to_t(float(sigma)) for sigma in plan.sigmas[:-1]]
    np.testing.assert_allclose(told, expected.timesteps.numpy(), rtol=1e-12)
