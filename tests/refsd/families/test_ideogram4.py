"""Ideogram 4: two networks, thirteen states of each token, levels by the picture's size, scales of each step."""

import math
from statistics import NormalDist

import numpy as np
import pytest
import small_families as small
from safetensors.numpy import save_file
from small_pictures import PARTS, Letters
from typer.testing import CliRunner

from refsd.cli import app
from refsd.families import VARIANTS
from refsd.families.ideogram4 import not_cut
from refsd.models.ideogram4 import CONTEXT_LAYERS, UNCONDITIONAL
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT64
from refsd.pipelines import txt2img
from refsd.pipelines.guidance_rule import GuidanceRule
from refsd.pipelines.pipeline import open_pipeline
from refsd.pipelines.plan import resolve
from refsd.pipelines.prompts import Tokenizers
from refsd.pipelines.settings import Settings
from refsd.samplers.schedules.flow import flow_logit_normal
from refsd.weights import open_checkpoint

pytestmark = pytest.mark.jitted

PLACES = {
    "ideogram4": "transformer",
    "ideogram4-unconditional": "unconditional_transformer",
    "qwen3_vl": "text_encoder",
    "flux2-vae": "vae",
}


@pytest.fixture(autouse=True)
def _letters(monkeypatch):
    monkeypatch.setattr(Tokenizers, "of", lambda self, encoder: Letters())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A diffusers folder with both networks, under the original's names."""
    folder = tmp_path_factory.mktemp("ideogram4")
    sizes = PARTS["ideogram4"] | {"ideogram4-unconditional": PARTS["ideogram4"]["ideogram4"]}
    for seed, (component, size) in enumerate(sizes.items()):
        (folder / PLACES[component]).mkdir()
        save_file(small.weights(component, size, seed), folder / PLACES[component] / "model.safetensors")
    (folder / "scheduler").mkdir()
    (folder / "scheduler" / "scheduler_config.json").write_text('{"shift": 1.0}')
    return folder


@pytest.fixture(scope="module")
def pipe(folder):
    return open_pipeline(open_checkpoint(folder), Tokenizers(), Arithmetic(FLOAT64), 1 << 30)


def planned(pipe, *size, **more):
    return resolve(pipe, Settings("a cat", "", *size, **{"like": "diffusers", **more}))


def test_a_picture_by_hand(pipe):
    """Each network called here, with its own condition; the second step is guided less."""
    width, height = 6 * pipe.autoencoder.pixels, 4 * pipe.autoencoder.pixels
    plan = planned(pipe, width, height, steps=2, guidance_rule=GuidanceRule(guidance_schedule=(5.0, 2.0)))
    both = txt2img.encode(pipe, plan)
    rule = pipe.variant.encoders["qwen3_vl"].rules["diffusers"]
    ids = np.array([Letters().encode(rule.around[0]) + Letters().encode("a cat" + rule.around[1])])
    given = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    params = {"layers": [*CONTEXT_LAYERS], "final_norm": False}
    states = pipe.encoders["qwen3_vl"](given, "by hand", also=True, **params)["hidden_states"]
    side_by_side = states.reshape(*ids.shape, 13, -1)
    context = np.concatenate([side_by_side[..., channel] for channel in range(side_by_side.shape[3])], axis=2)
    np.testing.assert_array_equal(both.cond.context, context)
    heard = {}
    latent = txt2img.sample(pipe, plan, both, 42, listener=lambda name, x: heard.update({name: np.array(x)}))
    mu = math.log(24 / 1024) / 2
    levels = [1 / (1 + math.exp(-9)), 1 / (1 + math.exp(-mu - 1.5 * NormalDist().inv_cdf(0.5))), 0]
    np.testing.assert_allclose(plan.sigmas, levels, rtol=1e-14)
    alone = pipe.denoiser._replace(module=pipe.denoiser.module[UNCONDITIONAL])
    x = heard["noise"].astype(np.float64)
    for sigma, sigma_next, scale in zip(levels, levels[1:], (5.0, 2.0), strict=False):
        inputs = {"x": x, "timesteps": np.array([1 - sigma])}
        cond = pipe.denoiser({**inputs, "context": context}, "by hand")["out"]
        nothing = {"context": np.ones((1, 2, context.shape[2])), "context_mask": np.zeros((1, 2), np.int64)}
        uncond = alone({**inputs, **nothing}, "by hand")["out"]
        x = x - (sigma_next - sigma) * (scale * cond + (1 - scale) * uncond)
    assert np.linalg.norm(latent - x) <= 1e-10 * np.linalg.norm(x)
    picture = txt2img.decode(pipe, latent)
    assert picture.shape == (1, 3, height, width) and np.isfinite(picture).all()


def test_channels_of_a_latent(pipe):
    """The places in a square of latents are the outer of the denoiser's channels, FLUX.2's inner."""
    m = pipe.autoencoder.decoder.module
    mean, var = (m.weight(f"bn.running_{name}") for name in ("mean", "var"))
    picture = np.random.default_rng(0).standard_normal((1, 3, 64, 32))
    own = pipe.autoencoder.encode(picture)
    plain = pipe.autoencoder.with_params({"squares_first": False}).encode(picture)
    std = np.sqrt(var + 1e-4)[:, None, None]
    packed = plain * std + mean[:, None, None]
    for place in range(4):
        for c in range(32):
            at = 32 * place + c
            np.testing.assert_allclose(
                own[0, at] * std[at] + mean[at], packed[0, 4 * c + place], rtol=1e-9, atol=1e-12
            )
    twice = pipe.autoencoder.decode(own)
    np.testing.assert_allclose(
        twice, pipe.autoencoder.with_params({"squares_first": False}).decode(plain), rtol=1e-9
    )


def test_scales_of_the_default_steps(pipe):
    """7 and in the last 3 of 48 steps 3; not where the user names a scale, or another number of steps."""
    usual = planned(pipe, 64, 32)
    assert len(usual.sigmas) == 49 and usual.guidance_rule.guidance_schedule == (7.0,) * 45 + (3.0,) * 3
    assert planned(pipe, 64, 32, steps=48).guidance_rule == usual.guidance_rule
    for other in ({"steps": 47}, {"cfg_scale": 7.0}, {"guidance_rule": GuidanceRule(guidance_schedule=(2.0,))}):
        assert planned(pipe, 64, 32, **other).guidance_rule == other.get("guidance_rule", GuidanceRule())


def test_the_first_noise_is_whole(pipe):
    plan = planned(pipe, 64, 32, steps=4)
    assert plan.first_noise == 1 and plan.sigmas[0] < 1
    shown = CliRunner().invoke(app, ["sigmas", "--model", "ideogram4", "--steps", "4"])
    assert "noise * 1 at first" in shown.output and "0.99987661" in shown.output


def test_refused(pipe, folder, tmp_path):
    with pytest.raises(BadInput, match="--negative-prompt: Ideogram 4"):
        txt2img.encode(pipe, resolve(pipe, Settings("a cat", "ugly", 64, 32, like="diffusers")))
    with pytest.raises(
        BadInput, match="the prompt has 2049 tokens with its template; Ideogram 4 takes at most 2048"
    ):
        not_cut([0] * 2049, 2048)
    for part in folder.iterdir():
        if part.name != UNCONDITIONAL:
            (tmp_path / part.name).symlink_to(part)
    alone = open_pipeline(open_checkpoint(tmp_path), Tokenizers(), Arithmetic(FLOAT64))
    with pytest.raises(BadInput, match="a folder unconditional_transformer beside transformer"):
        txt2img.encode(alone, planned(alone, 64, 32))
    assert txt2img.encode(alone, planned(alone, 64, 32, cfg_scale=1.0)).uncond is None


def test_networks_of_other_latents_do_not_go_together(folder, tmp_path):
    for part in folder.iterdir():
        if part.name != UNCONDITIONAL:
            (tmp_path / part.name).symlink_to(part)
    (tmp_path / UNCONDITIONAL).mkdir()
    size = PARTS["ideogram4"]["ideogram4"]._replace(channels=64)
    arrays = small.weights("ideogram4-unconditional", size)
    save_file(arrays, tmp_path / UNCONDITIONAL / "model.safetensors")
    with pytest.raises(BadInput, match=r'"input_proj.weight" has shape \[512, 64\], and the first network takes'):
        open_pipeline(open_checkpoint(tmp_path), Tokenizers(), Arithmetic(FLOAT64))


def test_quartiles_of_its_schedule():
    """Of a normal distribution of deviation 1.5: its quartiles lie 0.67449 deviations from the middle."""
    upper = 1 / (1 + math.exp(-1.5 * 0.6744897501960817))
    np.testing.assert_allclose(flow_logit_normal(4)[1:], [upper, 0.5, 1 - upper, 0], rtol=1e-14)
    assert flow_logit_normal(1).tolist() == [1 / (1 + math.exp(-9)), 0]


def test_its_schedule_falls_at_any_size():
    flow = VARIANTS["ideogram4"].flow
    assert flow is not None
    for tokens in (1, 1024, 16384):
        for steps in (1, 2, 48, 1000):
            levels = flow.levels(flow.shift["diffusers"](tokens, steps))
            sigmas = flow_logit_normal(steps, levels.shift)
            assert sigmas.shape == (steps + 1,) and (np.diff(sigmas) <= 0).all() and sigmas[-1] == 0
