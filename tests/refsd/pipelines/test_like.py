"""--like comfyui, a1111 and forge: whole latents as the engines' own code drew them, and what is refused.

Recorded in float64 from tiny models (tests/fixtures/record_like_*.py): weighted prompts of two chunks; a batch of
2; not square.
"""

from dataclasses import replace
from pathlib import Path

import like_settings as recorded
import numpy as np
import pytest
from safetensors.numpy import load_file
from small_pictures import EOS, call, files, pipeline

from refsd.conventions import CONVENTIONS
from refsd.conventions.prompts import edited_or_combined
from refsd.families import VARIANTS
from refsd.families.family import Condition
from refsd.numerics.errors import BadInput
from refsd.pipelines import txt2img
from refsd.pipelines.autoencoders import Autoencoder
from refsd.pipelines.conditioning_images import ConditioningImages
from refsd.pipelines.initial_latent import initial_latent
from refsd.pipelines.plan import NO_IMAGES, resolve
from refsd.pipelines.prompts import CLIP, _weighted_ids
from refsd.pipelines.settings import Settings
from refsd.pipelines.txt2img import Conditioning

FIXTURES = Path(__file__).parents[2] / "fixtures"
COMFYUI, A1111, FORGE = (np.load(FIXTURES / f"like_{engine}.npz") for engine in ("comfyui", "a1111", "forge"))
H, W = (recorded.PIXELS * side for side in recorded.LATENT)

pytestmark = pytest.mark.usefixtures("letters")


class GivenLatent(Autoencoder):
    """Encodes every picture to one latent, the posterior's mean."""

    def encode(self, image, draw=None, scaled=True):
        assert draw is None
        unets = image.shape[2] == H
        latent, _ = recorded.given() if unets else recorded.given(16, recorded.FLOW_LATENT)
        return latent[:1]


def opened(folder, family):
    sizes = recorded.SIZES.get(family, {})
    if sizes:  # other files than other tests have of this family
        folder = folder / "comfyui"
        folder.mkdir(exist_ok=True)
    pipe = pipeline(folder, family, **sizes)
    clips = {name: one for name, one in pipe.encoders.items() if name in CLIP}
    clips = {name: one._replace(params={**one.params, "eos": EOS}) for name, one in clips.items()}
    return pipe._replace(encoders={**pipe.encoders, **clips}, autoencoder=GivenLatent(*pipe.autoencoder))


def planned(pipe, run, like, **settings):
    flow = run.family in recorded.SIZES
    h, w = recorded.FLOW_LATENT if flow else recorded.LATENT
    height, width = pipe.autoencoder.pixels * h, pipe.autoencoder.pixels * w
    _, mask = recorded.given(16, (h, w)) if flow else recorded.given()
    images = NO_IMAGES
    if run.strength is not None:
        images = ConditioningImages(np.zeros((1, 3, height, width)), mask if run.masked else None)
    chosen = Settings(
        *(recorded.PROMPT, run.negative, width, height, recorded.STEPS, run.cfg_scale, run.sampler),
        schedule=run.schedule,
        strength=1.0 if run.strength is None else run.strength,
        seed=recorded.SEED,
        batch_count=recorded.BATCH,
        like=like,
        **settings,
    )
    plan = resolve(pipe, chosen, images)
    # SDXL is told the size of a picture of 8 pixels per latent.
    return replace(plan, height=8 * h, width=8 * w)


def agree(folder, run, like, truth, **settings):
    pipe = opened(folder, run.family)
    plan = planned(pipe, run, like, **settings)
    conditioning = txt2img.encode(pipe, plan)
    for which in ("cond", "uncond") if plan.guided else ("cond",):
        hidden = getattr(conditioning, which).context[0, :: run.every]
        hidden = hidden.reshape(len(hidden), -1)  # Krea 2's twelve layers
        expected = truth[f"{run.name} {which}"]
        np.testing.assert_allclose(hidden, expected, rtol=0, atol=1e-12 * max(np.abs(expected).max(), 1e-300))
    drawn(pipe, plan, conditioning, run, truth)


def drawn(pipe, plan, conditioning, run, truth):
    noise = np.concatenate([initial_latent(pipe, plan, seed).noise for seed in plan.seeds])
    np.testing.assert_array_equal(noise, truth[f"{run.name} noise"])
    latents = np.concatenate([txt2img.sample(pipe, plan, conditioning, seed) for seed in plan.seeds])
    assert np.linalg.norm(latents - truth[run.name]) <= 1e-12 * np.linalg.norm(truth[run.name])


@pytest.mark.parametrize("run", (*recorded.RUNS, *recorded.FLOW_RUNS), ids=lambda run: run.name)
def test_comfyui_draws_the_same_latents(folder, run):
    agree(folder, run, "comfyui", COMFYUI, sampler_rng="cpu")


@pytest.mark.parametrize("run", recorded.WEBUI_RUNS, ids=lambda run: run.name)
def test_a1111_draws_the_same_latents(folder, run, monkeypatch):
    """In a size that refsd refuses for it: it was recorded with ComfyUI's UNet, which draws it."""
    monkeypatch.setitem(CONVENTIONS, "a1111", replace(CONVENTIONS["a1111"], unet_multiple=1))
    agree(folder, run, "a1111", A1111, rng="nv")


@pytest.mark.parametrize("run", recorded.WEBUI_RUNS, ids=lambda run: run.name)
def test_forge_draws_the_same_latents_from_given_conditioning(folder, run):
    pipe = opened(folder, run.family)
    conditioning = Conditioning(*(Condition(context, y) for context, y in recorded.conditioning(run.family)))
    drawn(pipe, planned(pipe, run, "forge"), conditioning, run, FORGE)


def test_forge_differs_from_a1111_in_levels_defaults_and_sizes(folder):
    pipe = opened(folder, "sd15")
    plans = {
        like: resolve(pipe, Settings("a", width=W * 8, height=W * 8, like=like)) for like in ("a1111", "forge")
    }
    assert [(plan.sampler, plan.schedule) for plan in plans.values()] == [
        ("dpm++2m", "karras"),
        ("euler_a", "discrete"),
    ]
    assert (
        plans["forge"].levels.to_t(3.0) == round(plans["a1111"].levels.to_t(3.0)) != plans["a1111"].levels.to_t(3.0)
    )
    odd = Settings("a", width=W + 1, height=H, like="forge")
    assert resolve(pipe, odd).width == W
    with pytest.raises(BadInput, match=r"13x10: a1111 draws Stable Diffusion 1.x in multiples of 16 only"):
        resolve(pipe, odd._replace(like="a1111"))


def test_comfyui_starts_with_its_default_workflow(folder):
    plan = resolve(opened(folder, "sd15"), Settings("a", width=W + 1, height=H, like="comfyui"))
    assert (plan.sampler, plan.schedule, plan.cfg_scale, plan.rng, plan.sampler_rng) == (
        *("euler", "discrete", 8.0),
        *("cpu", "nv"),
    )
    assert (plan.width, plan.height) == (W, H)


def test_comfyui_starts_a_flow_with_its_template(folder):
    plan = resolve(opened(folder, "flux-dev"), Settings("a", width=64, height=64, like="comfyui"))
    assert (plan.sampler, plan.schedule, plan.cfg_scale, plan.guidance) == ("euler", "simple", 1.0, 3.5)


def test_comfyui_shifts_qwen_image_21_by_one_mu_and_has_no_space_for_an_empty_prompt(folder):
    """From its source: `simple` takes of ten thousand levels, and mu is that of 1024 x 1024."""
    pipe = opened(folder, "qwen-image21")
    plan = resolve(pipe, Settings("a", width=64, height=64, steps=4, like="comfyui"))
    t = np.array([1, 0.75, 0.5, 0.25, 0])
    np.testing.assert_allclose(plan.sigmas, np.exp(0.69) * t / (1 + (np.exp(0.69) - 1) * t), atol=1e-15)
    rules = VARIANTS["qwen-image21"].encoders["qwen3_vl"].rules
    assert (rules["comfyui"].text(""), rules["diffusers"].text("")) == ("", " ")


@pytest.mark.parametrize(("like", "eps"), [("diffusers", 1e-5), ("comfyui", 1e-4)])
def test_ernie_image_s_latents_have_the_engine_s_eps(folder, tmp_path, like, eps):
    given = [part for flag, file in files(folder / "ernie-image", "ernie-image").items() for part in (flag, file)]
    size = "-W", 64, "-H", 32, "--steps", 1, "--cfg-scale", 1, "--numerics", "float64"
    taps = tmp_path / "taps.safetensors"
    result = call(*given, "-p", "a", *size, "--like", like, "--taps", taps, "-o", tmp_path / "a.png")
    assert result.exit_code == 0, result.output
    found = load_file(taps)
    vae = pipeline(folder, "ernie-image").autoencoder.with_params({"eps": eps})
    np.testing.assert_allclose(found["0.image"], vae.decode(found["0.latent"]), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("family", "flag", "shift", "levels"),
    [
        ("qwen-image", None, np.exp(1.15), 10000),
        ("qwen-image", 3.1, 3.1, 1000),
        ("krea2", 3.0, 3.0, 1000),
        ("flux-dev", 0.7, np.exp(0.7), 10000),
        ("chroma", None, 1.0, 1000),
        ("chroma", 1.15, np.exp(1.15), 10000),
        ("lumina2", 4.0, 4.0, 1000),
    ],
)
def test_comfyui_s_nodes_that_shift_have_levels_of_their_own(folder, family, flag, shift, levels):
    """From its source: `simple` takes whole numbers of ModelSamplingAuraFlow's or ModelSamplingFlux's levels."""
    settings = Settings("a", width=64, height=64, steps=7, flow_shift=flag, schedule="simple", like="comfyui")
    plan = resolve(opened(folder, family), settings)
    t = np.array([(levels - int(i * levels / 7)) / levels for i in range(7)] + [0])
    np.testing.assert_allclose(plan.sigmas, shift * t / (1 + (shift - 1) * t), atol=1e-15)


def test_neighbouring_parts_of_one_weight_are_two_texts_for_comfyui():
    """As its tokenizers are called: a letter of its own begins each text."""
    begun = lambda text: [0, *map(ord, text)]
    parts = [("a", 1.0), ("b", 1.0), ("c", 2.0)]
    assert _weighted_ids(begun, parts, CONVENTIONS["comfyui"].prompt.joins)[0] == [0, 97, 0, 98, 0, 99]
    assert _weighted_ids(begun, parts, CONVENTIONS["sdcpp"].prompt.joins)[0] == [0, 97, 98, 0, 99]


@pytest.mark.parametrize(
    ("like", "family", "changes", "said"),
    [
        (
            "comfyui",
            "flux3",
            {},
            "--like comfyui: refsd knows its rules for Stable.*Krea 2.*, not for FLUX.3",
        ),
        ("comfyui", "flux-dev", {"width": 66}, "66x64: comfyui draws FLUX.1 dev .* in multiples of 4 only"),
        (
            "a1111",
            "sdxl",
            {"clip_skip": 2},
            "--clip-skip: for a1111 .*of Stable Diffusion 1.x, not of SDXL",
        ),
        (
            "forge",
            "sd2",
            {"clip_skip": 2},
            "--clip-skip: for forge .*SDXL, not of Stable Diffusion 2",
        ),
        ("a1111", "sd15", {"prompt": "a [cat:dog:0.5]"}, "--prompt: a1111 edits or combines prompts"),
        ("forge", "sd15", {"negative_prompt": "a AND b"}, "--negative-prompt: forge edits or combines"),
        (
            "a1111",
            "sd15",
            {"sampler": "dpm++2m_sde"},
            "--sampling-method .*: of a1111's samplers refsd knows",
        ),
        (
            "comfyui",
            "sd15",
            {"sampler": "res_2s"},
            "--sampling-method res_2s: of comfyui's samplers",
        ),
        (
            "forge",
            "sd15",
            {"prediction": "edm_v"},
            "--prediction edm_v: .*noise levels that forge",
        ),
    ],
)
def test_what_refsd_does_not_know_of_an_engine_is_refused(folder, like, family, changes, said):
    pipe = opened(folder, family)
    with pytest.raises(BadInput, match=said):
        resolve(pipe, Settings("a", width=64, height=64, like=like)._replace(**changes))


def test_a_mask_is_refused_where_refsd_does_not_know_how_it_is_used(folder):
    images = ConditioningImages(np.zeros((1, 3, 64, 64)), np.ones((1, 1, 64, 64)))
    with pytest.raises(BadInput, match="--mask: refsd does not know how a1111 inpaints"):
        resolve(opened(folder, "sd15"), Settings("a", like="a1111"), images)


@pytest.mark.parametrize(
    ("prompt", "edited"),
    [
        *[("a (red:1.2) cat", False), ("a [red] cat", False), (r"a \[red|blue\]", False), ("SAND and", False)],
        *[("a [red|blue] cat", True), ("a [[x]:y: 0.5 ]", True), ("cat AND dog", True), ("<lora:x:1>", True)],
    ],
)
def test_prompts_that_change_on_the_way_are_found(prompt, edited):
    assert edited_or_combined(prompt) == edited
