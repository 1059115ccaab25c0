import json
from pathlib import Path

import numpy as np
import pytest
from naive import euler as naive

from refsd.components import forward
from refsd.families.family import Condition
from refsd.numerics.errors import BadInput
from refsd.pipelines import txt2img
from refsd.pipelines.plan import resolve
from refsd.pipelines.settings import Settings
from refsd.samplers.levels import SD_LEVELS
from refsd.samplers.noise import Philox
from refsd.samplers.schedules import discrete
from refsd.tokenizers import find_tokenizer

pytestmark = pytest.mark.jitted  # whole models

RECORDED = json.loads((Path(__file__).parents[2] / "fixtures" / "txt2img_tiny.json").read_text())
SETTINGS = Settings("a lovely cat", "ugly", 64, 64, steps=2, sampler="euler", cfg_scale=3.0)


@pytest.fixture(scope="module")
def run(sd):
    heard = {}
    plan = resolve(sd, SETTINGS)
    conditioning = txt2img.encode(sd, plan)
    latent = txt2img.sample(sd, plan, conditioning, 42, listener=lambda name, x: heard.update({name: np.array(x)}))
    return conditioning, latent, heard


def encoded(sd, prompt):
    ids = np.full((1, 77), 49407)
    words = find_tokenizer().encode(prompt)
    ids[0, : 1 + len(words)] = [49406, *words]
    return forward("clip", sd.encoders["clip"].module, {"input_ids": ids}, sd.encoders["clip"].params)[
        "last_hidden_state"
    ]


def test_against_naive(sd, run):
    """The components called by hand, guidance on denoised instead of noise, DDIM's form of the step."""
    _, latent, _ = run
    cond, uncond = encoded(sd, "a lovely cat"), encoded(sd, "ugly")
    sigmas = discrete(2, SD_LEVELS)

    def denoised(x, sigma):
        answers = []
        for context in (cond, uncond):
            inputs = {
                "x": x / np.sqrt(1 + sigma**2),
                "timesteps": np.array([SD_LEVELS.to_t(sigma)]),
                "context": context,
            }
            answers.append(x - sigma * forward("unet", sd.denoiser.module, inputs, sd.denoiser.params)["out"])
        return -2.0 * answers[1] + 3.0 * answers[0]

    x = Philox(42).randn((1, 4, 8, 8)) * sigmas[0]
    expected = naive.euler(denoised, x, sigmas)
    assert latent.dtype == np.float64
    assert np.linalg.norm(latent - expected) <= 1e-11 * np.linalg.norm(expected)


@pytest.mark.smoke
def test_recorded_picture(sd, run):
    """The picture of record_txt2img.py: another machine's BLAS may move it in the last bits only."""
    _, latent, _ = run
    image = txt2img.decode(sd, latent)
    np.testing.assert_allclose(latent[0, :, 3, 5], RECORDED["latent[0, :, 3, 5]"], rtol=1e-9)
    np.testing.assert_allclose(image[0, :, 10, ::16], RECORDED["image[0, :, 10, ::16]"], rtol=1e-8, atol=1e-10)


def test_what_a_listener_hears(run):
    conditioning, latent, heard = run
    assert list(heard)[:2] == ["noise", "calls.0.x"] and list(heard)[-1] == "latent"
    assert conditioning.cond.context.shape == conditioning.uncond.context.shape == (1, 77, 128)
    sigma = heard["steps.0.sigma"]
    np.testing.assert_allclose(heard["steps.0.x"], heard["noise"] * sigma, rtol=1e-15)
    np.testing.assert_allclose(heard["calls.0.timesteps"], [999.0])
    np.testing.assert_allclose(heard["calls.1.timesteps"], [0.0], atol=1e-12)
    eps = heard["calls.1.uncond"] + 3.0 * (heard["calls.1.cond"] - heard["calls.1.uncond"])
    np.testing.assert_allclose(heard["steps.1.eps"], eps, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(heard["latent"], latent)


def test_a_cfg_scale_of_one_leaves_uncond_out(sd):
    assert txt2img.encode(sd, resolve(sd, SETTINGS._replace(cfg_scale=1.0))).uncond is None


def test_seed_rng_and_prompt_matter(sd, run):
    conditioning, *_ = run
    only_cond = conditioning._replace(uncond=None)
    settings = SETTINGS._replace(cfg_scale=1.0, steps=1)
    quick = resolve(sd, settings)
    base = txt2img.sample(sd, quick, only_cond, 42)
    for changed in (
        txt2img.sample(sd, quick, only_cond, 43),
        txt2img.sample(sd, resolve(sd, settings._replace(rng="cpu")), only_cond, 42),
        txt2img.sample(sd, quick, txt2img.Conditioning(conditioning.uncond, None), 42),
    ):
        assert not np.allclose(base, changed)


def test_euler_a_goes_on_drawing_from_the_stream_of_the_first_noise(sd, run, monkeypatch):
    drawn = []
    monkeypatch.setattr(Philox, "randn", lambda self, shape: drawn.append(shape) or np.zeros(shape, np.float32))
    only_cond = run[0]._replace(uncond=None)
    txt2img.sample(sd, resolve(sd, SETTINGS._replace(cfg_scale=1.0, sampler="euler_a")), only_cond, 42)
    assert drawn == [(1, 4, 8, 8)] * 2


def context(sd, prompt, skip=None):
    return txt2img.encode_prompt(sd, resolve(sd, SETTINGS._replace(prompt=prompt, clip_skip=skip))).context


def test_weights_keep_the_mean(sd):
    plain, heavy = context(sd, "a lovely cat"), context(sd, "a (lovely:1.5) cat")
    np.testing.assert_allclose(heavy.mean(), plain.mean(), rtol=1e-9)
    ratio = heavy / plain
    np.testing.assert_allclose(ratio[0, 2] / ratio[0, 0], 1.5, rtol=1e-6)  # BOS, a, lovely
    np.testing.assert_allclose(ratio[0, 3:] / ratio[0, 0].mean(), 1.0, rtol=1e-6)


def test_long_prompts_are_chunks_one_after_the_other(sd):
    long = context(sd, "cat " * 80)
    assert long.shape == (1, 154, 128)
    np.testing.assert_allclose(long[:, 77:], context(sd, "cat " * 5), rtol=1e-12)
    conditioning = txt2img.Conditioning(Condition(long), None)
    assert np.isfinite(txt2img.sample(sd, resolve(sd, SETTINGS._replace(steps=1)), conditioning, 0)).all()


def test_clip_skip(sd):
    last, before = (context(sd, "a cat", skip) for skip in (1, 2))
    assert not np.allclose(last, before)
    with pytest.raises(BadInput, match="clip_skip is 3, the model takes at most 2"):
        context(sd, "a cat", 3)


@pytest.mark.parametrize(("like", "counts"), [("sdcpp", True), ("diffusers", False)])
def test_clip_skip_and_the_negative_prompt(sd, like, counts):
    asked = SETTINGS._replace(prompt="a cat", negative_prompt="a cat", like=like, clip_skip=None)
    last = txt2img.encode_prompt(sd, resolve(sd, asked)).context
    skipped = resolve(sd, asked._replace(clip_skip={"sdcpp": 2, "diffusers": 1}[like]))
    prompt, negative = (txt2img.encode_prompt(sd, skipped, negative).context for negative in (False, True))
    assert not np.allclose(prompt, last)
    np.testing.assert_array_equal(negative, prompt if counts else last)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schedule": "gits", "steps": 1}, "--scheduler gits, --steps 1: GITS has no table"),
        ({"sampler": "dpm_fast", "steps": 1}, "--sampling-method dpm_fast, --steps 1: .*two steps"),
    ],
)
def test_steps_that_cannot_be(sd, run, change, said):
    conditioning, _, _ = run
    with pytest.raises(BadInput, match=said):
        txt2img.sample(sd, resolve(sd, SETTINGS._replace(**change)), conditioning, 42)


@pytest.mark.parametrize("sampler", ["dpm++2m", "dpm++2s_a", "lms"])
def test_other_samplers_end_in_a_picture(sd, run, sampler):
    conditioning, latent, _ = run
    plan = resolve(sd, SETTINGS._replace(sampler=sampler, schedule="karras", steps=3))
    other = txt2img.sample(sd, plan, conditioning, 42)
    assert other.shape == latent.shape and np.isfinite(other).all()


def test_cfg_pp_needs_uncond_at_any_scale(sd, run):
    plan = resolve(sd, SETTINGS._replace(sampler="euler_cfg_pp", cfg_scale=1.0))
    conditioning = txt2img.encode(sd, plan)
    assert conditioning.uncond is not None
    heard = {}
    latent = txt2img.sample(sd, plan, conditioning, 42, listener=lambda name, x: heard.update({name: np.array(x)}))
    sigma, sigma_next = plan.sigmas[:2]
    x, cond, uncond = heard["steps.0.x"], heard["calls.0.cond"], heard["calls.0.uncond"]
    np.testing.assert_allclose(heard["steps.1.x"], x - sigma * cond + sigma_next * uncond, rtol=1e-9, atol=1e-12)
    assert np.isfinite(latent).all()


def test_sigmas_instead_of_a_schedule(sd, run):
    conditioning, latent, _ = run
    sigmas = tuple(resolve(sd, SETTINGS).sigmas)
    plan = resolve(sd, SETTINGS._replace(schedule="karras", sigmas=sigmas))
    same = txt2img.sample(sd, plan, conditioning, 42)
    np.testing.assert_array_equal(same, latent)


def test_another_generator_between_the_steps(sd, run):
    only_cond = run[0]._replace(uncond=None)
    settings = SETTINGS._replace(cfg_scale=1.0, sampler="euler_a")
    plans = [resolve(sd, settings._replace(sampler_rng=rng)) for rng in (None, "cuda", "cpu")]
    ends = [txt2img.sample(sd, plan, only_cond, 42) for plan in plans]
    np.testing.assert_array_equal(ends[0], ends[1])
    assert not np.allclose(ends[0], ends[2])
