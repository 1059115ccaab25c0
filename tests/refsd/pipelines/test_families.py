"""Every family draws, from parts; and its loop is the one that a few lines of its own formulas make."""

import json
import math

import numpy as np
import pytest
import small_pictures as small
from PIL import Image
from small_pictures import call, pipeline

from refsd.families import VARIANTS
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT64
from refsd.pipelines import txt2img
from refsd.pipelines.pipeline import open_pipeline
from refsd.pipelines.plan import resolve
from refsd.pipelines.prompts import Tokenizers
from refsd.pipelines.settings import Settings
from refsd.weights import open_checkpoint

pytestmark = [pytest.mark.jitted, pytest.mark.usefixtures("letters")]  # whole models

F64 = ["--numerics", "float64"]


def shifted(t, shift):
    return shift * t / (1 + (shift - 1) * t)


def mu(tokens):
    return 0.5 + (tokens - 256) * (1.15 - 0.5) / (4096 - 256)


def mu2(tokens, n):
    ten, many = 8.73809524e-5 * tokens + 1.89833333, 1.6927e-4 * tokens + 0.45666666
    return ten + (n - 10) * (many - ten) / 190


def mu21(tokens):
    return 0.5 + (tokens - 256) * (0.9 - 0.5) / (8192 - 256)


# family -> sigmas of two steps for a latent of 24 squares, what the network is told, the sign of its velocity
FLOWS = {
    "sd3": ([1, shifted(0.001, 3)], lambda sigma: 1000 * sigma, 1),
    "sd35-medium": ([1, shifted(0.001, 3)], lambda sigma: 1000 * sigma, 1),
    "flux-dev": ([1, shifted(0.5, math.exp(mu(24)))], lambda sigma: sigma, 1),
    "flux-schnell": ([1, shifted(0.5, math.exp(mu(24)))], lambda sigma: sigma, 1),
    "chroma": ([1, shifted(0.5, math.exp(mu(24)))], lambda sigma: sigma, 1),
    "zimage": ([1, shifted(0.001, 3)], lambda sigma: 1 - sigma, -1),
    "flux2-klein": ([1, shifted(0.5, math.exp(mu2(24, 2)))], lambda sigma: sigma, 1),
    "flux2-dev": ([1, shifted(0.5, math.exp(mu2(24, 2)))], lambda sigma: sigma, 1),
    "flux3": ([1, shifted(0.5, 6.93)], lambda sigma: sigma, 1),
    "flux3-distilled": ([1, shifted(0.5, 6.93)], lambda sigma: sigma, 1),
    "qwen-image21": ([1, shifted(0.001, math.exp(mu21(96)))], lambda sigma: sigma, 1),
    "chroma-radiance": ([1, shifted(0.5, math.exp(mu(24)))], lambda sigma: sigma, 1),
}


@pytest.mark.parametrize("family", FLOWS)
def test_a_flow_by_hand(folder, family):
    """x + (sigma_next - sigma) (uncond + 3 (cond - uncond)), the network called here."""
    pipe = pipeline(folder, family)
    side = pipe.autoencoder.pixels * pipe.denoiser.patch
    plan = resolve(pipe, Settings("a cat", "ugly", 6 * side, 4 * side, steps=2, cfg_scale=3.0))
    both = txt2img.encode(pipe, plan)
    heard = {}
    latent = txt2img.sample(pipe, plan, both, 42, listener=lambda name, x: heard.update({name: np.array(x)}))
    levels, told, sign = FLOWS[family]
    x = heard["noise"].astype(np.float64)
    for sigma, sigma_next in zip(levels, [*levels[1:], 0], strict=True):
        velocity = []
        for text in both:
            inputs = {"x": x, "timesteps": np.array([told(sigma)]), "context": text.context}
            inputs |= {} if text.y is None else {"y": text.y}
            inputs |= {} if text.mask is None else {"context_mask": text.mask}
            if family in ("flux-dev", "flux2-dev"):
                inputs["guidance"] = np.array([VARIANTS[family].guidance])
            if family == "flux3-distilled":
                inputs["target_timesteps"] = np.array([sigma_next])
            velocity.append(sign * pipe.denoiser(inputs, "by hand")["out"])
        cond, uncond = velocity
        x = x + (sigma_next - sigma) * (uncond + 3 * (cond - uncond))
    assert np.linalg.norm(latent - x) <= 1e-10 * np.linalg.norm(x)
    picture = txt2img.decode(pipe, latent)
    colours = 4 if pipe.autoencoder.alpha else 3
    assert picture.shape == (1, colours, plan.height, plan.width) and np.isfinite(picture).all()


def test_qwen_image21_takes_the_last_state_before_its_norm(folder):
    """Without the system's tokens; an empty negative prompt is a space."""
    pipe = pipeline(folder, "qwen-image21")
    plan = resolve(pipe, Settings("a cat", "", 32, 32, steps=1, cfg_scale=2.0))
    rule = VARIANTS["qwen-image21"].encoders["qwen3_vl"].rules["diffusers"]
    for text, condition in zip(("a cat", " "), txt2img.encode(pipe, plan), strict=True):
        ids = np.array([small.Letters().encode(rule.around[0]) + small.Letters().encode(text + rule.around[1])])
        given = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
        want, normed = (
            pipe.encoders["qwen3_vl"](given, "by hand", final_norm=norm)["last_hidden_state"]
            for norm in (False, True)
        )
        np.testing.assert_allclose(condition.context, want[:, 14:], rtol=1e-12)
        assert condition.mask is None and np.abs(want - normed).max() > 1e-2


@pytest.mark.parametrize(
    ("prediction", "family"), [("eps", "sd2"), ("v", "sd2"), ("eps", "sdxl"), ("edm_v", "sdxl")]
)
def test_a_unet_by_hand(folder, prediction, family):
    """In DDIM's angles: v = cos eps - sin x0 with tan = sigma, whatever is predicted."""
    pipe = pipeline(folder, family)
    settings = Settings("a cat", "", 16, 32, 1, 1.0, "euler", prediction=prediction, sigmas=(5.0, 2.0))
    plan = resolve(pipe, settings)
    both = txt2img.encode(pipe, plan)
    heard = {}
    latent = txt2img.sample(pipe, plan, both, 42, listener=lambda name, x: heard.update({name: np.array(x)}))
    x = 5.0 * heard["noise"].astype(np.float64)
    cos, sin = 1 / math.hypot(1, 5.0), 5.0 / math.hypot(1, 5.0)
    out = heard["calls.0.cond"]
    np.testing.assert_allclose(heard["calls.0.x"], x * cos, rtol=1e-12)
    eps = out if prediction == "eps" else cos * out + sin * (x * cos)
    np.testing.assert_allclose(latent, x - 3.0 * eps, rtol=1e-9, atol=1e-12)
    if prediction == "edm_v":
        np.testing.assert_allclose(heard["calls.0.timesteps"], [math.log(5.0) / 4])


@pytest.mark.parametrize(
    "family",
    ["sd2", "sdxl", "sd3", "flux-dev", "chroma-radiance", "zimage", "qwen-image21", "flux2-dev", "flux3"],
)
def test_the_command(folder, tmp_path, family):
    place = folder / family
    place.mkdir(exist_ok=True)
    parts = [str(word) for pair in small.files(place, family).items() for word in pair]
    out = tmp_path / "cat.png"
    result = call(*parts, "-p", "a (red:1.3) cat", "-W", 32, "-H", 16, "--steps", 1, "-o", out, "--json", *F64)
    told = json.loads(result.stdout)
    assert told["family"] == family and told["pictures"] == [{"path": str(out), "seed": 42}]
    assert told["settings"]["cfg_scale"] == VARIANTS[family].cfg_scale
    with Image.open(out) as png:
        assert png.size == (32, 16) and np.array(png).std() > 1


def test_defaults_are_the_familys(folder):
    for family in ("sd15", "flux-dev", "flux-schnell", "flux3", "flux3-distilled", "zimage"):
        pipe = pipeline(folder, family)
        plan = resolve(pipe, Settings(""))
        assert (plan.steps, plan.cfg_scale) == (VARIANTS[family].steps, VARIANTS[family].cfg_scale)
        assert (plan.width, plan.rng) == (512, "cuda")
    assert resolve(pipe, Settings("", like="diffusers")).schedule == "flow_uniform"


@pytest.mark.parametrize(
    ("family", "flags", "said"),
    [
        ("flux-schnell", ["--guidance", 3], "--guidance: FLUX.1 schnell embeds no guidance"),
        ("sd15", ["--flow-shift", 3], "--flow-shift: Stable Diffusion 1.x is no rectified flow"),
        ("sd15", ["--scheduler", "flow_uniform"], "--scheduler flow_uniform: Stable Diffusion 1.x is no"),
        (
            "sd15",
            ["--like", "k-diffusion"],
            "--like k-diffusion: expected one of sdcpp, a1111,",
        ),
        (
            "zimage",
            ["--like", "a1111"],
            "--like a1111: refsd knows its rules for .*, not for Z-Image",
        ),
        ("sd15", ["--prediction", "x"], "--prediction x: expected one of eps, v, edm_v"),
        ("zimage", ["--prediction", "v"], "--prediction: Z-Image is a rectified flow"),
        ("zimage", ["--circular"], "--circular: Z-Image has no convolutions to wrap"),
        ("sd15", ["--strength", 1.5], "--strength 1.5: expected 0 to 1"),
    ],
)
def test_what_a_family_has_no_use_for(folder, tmp_path, family, flags, said):
    place = folder / family
    place.mkdir(exist_ok=True)
    parts = [word for pair in small.files(place, family).items() for word in pair]
    with pytest.raises(BadInput, match=said):
        call(*parts, "-p", "a cat", "-o", tmp_path / "cat.png", *flags)
    assert not list(tmp_path.iterdir())


def test_a_negative_prompt_that_is_not_read_is_said(folder, tmp_path):
    parts = [word for pair in small.files(folder / "flux-dev", "flux-dev").items() for word in pair]
    quick = ["-W", 8, "-H", 8, "--steps", 1, "-o", tmp_path / "cat.png"]
    said = call(*parts, "-p", "a cat", "-n", "ugly", *quick).stderr
    assert "--negative-prompt is not read: FLUX.1 dev or Kontext's guidance is distilled" in said
    assert "not read" not in call(*parts, "-p", "a cat", "-n", "ugly", "--cfg-scale", 2, *quick).stderr


def test_anothers_autoencoder_is_named(folder):
    files = small.files(folder / "flux-dev", "flux-dev")
    files["--vae"] = small.files(folder / "sd15", "sd15")["--vae"]
    with pytest.raises(BadInput, match=r"of 4 channels, and the denoiser's latents have 16: .* with --vae"):
        open_pipeline(open_checkpoint(None, files), Tokenizers(), Arithmetic(FLOAT64))


def test_an_empty_negative_prompt_of_sdxl_is_zeros(folder):
    pipe = pipeline(folder, "sdxl")
    for like, pooled in (("sdcpp", False), ("diffusers", True)):
        both = txt2img.encode(pipe, resolve(pipe, Settings("a cat", "", 16, 24, like=like)))
        assert not both.uncond.context.any() and both.cond.context.any()
        assert (not both.uncond.y[:, :8].any()) == pooled and both.uncond.y[:, 8:].any()
        assert txt2img.encode(pipe, resolve(pipe, Settings("a cat", "x", 16, 24, like=like))).uncond.context.any()


def test_engines_read_a_prompt_in_their_own_way(folder):
    """Lengths, padding behind EOS, masks."""
    pipe = pipeline(folder, "flux-dev")
    for like, tokens in (("sdcpp", 256), ("diffusers", 512)):
        assert txt2img.encode(pipe, resolve(pipe, Settings("a cat", like=like))).cond.context.shape == (
            1,
            tokens,
            40,
        )
    pipe = pipeline(folder, "sd3")
    without = pipe._replace(encoders={name: part for name, part in pipe.encoders.items() if name != "t5"})
    for like, tokens in (("sdcpp", 77), ("diffusers", 256)):
        context = txt2img.encode(without, resolve(without, Settings("a cat", like=like))).cond.context
        assert context.shape == (1, 77 + tokens, 40) and not context[:, 77:].any() and context[:, :77].any()
    pipe = pipeline(folder, "chroma")
    mask = txt2img.encode(pipe, resolve(pipe, Settings("a cat"))).cond.mask
    assert mask.sum() == len("a cat") + 2  # EOS, and the first pad
    weighed = txt2img.encode(pipe, resolve(pipe, Settings("a (cat:1.5)"))).cond.context
    assert not np.allclose(weighed, txt2img.encode(pipe, resolve(pipe, Settings("a cat"))).cond.context)
    np.testing.assert_allclose(
        weighed.mean(), txt2img.encode(pipe, resolve(pipe, Settings("a cat"))).cond.context.mean(), rtol=1e-6
    )
