import json

import numpy as np
import pytest
from small_pictures import pipeline

from refsd.conventions.diffusers import PICTURES as DIFFUSERS
from refsd.conventions.sdcpp import PICTURES as SDCPP
from refsd.numerics.errors import BadInput
from refsd.pipelines import txt2img
from refsd.pipelines.guidance_rule import GuidanceRule, read_extra, read_layers
from refsd.pipelines.plan import resolve
from refsd.pipelines.png import parameters_text
from refsd.pipelines.settings import Settings
from refsd.samplers.guidance import guide, projected_difference, rescale
from refsd.samplers.guidance_variants import hold_lengths

SETTINGS = Settings("a lovely cat", "ugly", 64, 64, steps=4, sampler="euler", cfg_scale=3.0)


def heard(pipe, **changed):
    settings = SETTINGS._replace(width=16, height=16, guidance_rule=GuidanceRule(**changed))
    plan, tensors = resolve(pipe, settings), {}
    conditioning = txt2img.encode(pipe, plan)
    txt2img.sample(pipe, plan, conditioning, 42, listener=lambda name, x: tensors.update({name: np.array(x)}))
    return tensors


@pytest.mark.parametrize("text", ["[7,8,9]", "7,8,9", " [7, 8, 9] ", "7 8 9"])
def test_layers_as_sd_cli_reads_them(text):
    assert read_layers(text) == (7, 8, 9)


@pytest.mark.parametrize("text", ["", "7,", "-1", "7;8", "1e3", "٣"])
def test_layers_that_cannot_be_read(text):
    with pytest.raises(BadInput, match=r"--skip-layers .*expected whole numbers"):
        read_layers(text)


def test_extra_sample_args():
    read = read_extra("apg_eta=0.5, apg_norm_threshold=2,guidance_schedule=7.5x2+1x1,slg_uncond=true")
    rule = GuidanceRule(**read)
    assert rule.changed() == {
        "apg_eta": 0.5,
        "apg_norm_threshold": 2.0,
        "guidance_schedule": (7.5, 7.5, 1.0),
        "slg_uncond": True,
    }
    assert rule.projects and rule.skips
    assert read_extra("") == {}


@pytest.mark.parametrize(
    "text, says",
    [
        ("eta=1", "'eta' is unknown: expected one of apg_eta"),
        ("apg_eta=much", "apg_eta: could not convert"),
        ("guidance_schedule=7x", "guidance_schedule: expected SCALExSTEPS"),
        ("slg_uncond=perhaps", "slg_uncond: expected true or false, found 'perhaps'"),
    ],
)
def test_extra_sample_args_that_cannot_be_read(text, says):
    with pytest.raises(BadInput, match=says):
        read_extra(text)


@pytest.mark.parametrize(
    "rule, says",
    [
        ({"guidance_rescale": 1.5}, "--guidance-rescale 1.5: expected 0 to 1"),
        ({"cfg_norm": -1.0}, "--cfg-norm -1.0: expected 0 to 100"),
        ({"apg_momentum": float("nan")}, "apg_momentum nan"),
        ({"skip_layer_end": 2.0}, "--skip-layer-end 2.0"),
        ({"guidance_rescale": 0.7, "apg_eta": 0.0}, "APG limits the guidance already"),
        ({"slg_scale": 2.5}, "--slg-scale: .* has no layers that an engine skips"),
    ],
)
def test_rules_that_a_unet_does_not_take(sd, rule, says):
    with pytest.raises(BadInput, match=says):
        resolve(sd, SETTINGS._replace(guidance_rule=GuidanceRule(**rule)))


@pytest.mark.parametrize(
    "rule", [{"guidance_rescale": 0.5}, {"cfg_norm": 1.0}, {"apg_eta": 0.0}, {"slg_uncond": True}]
)
def test_nothing_to_guide(sd, rule):
    settings = SETTINGS._replace(cfg_scale=1.0, guidance_rule=GuidanceRule(**rule))
    with pytest.raises(BadInput, match="without a --cfg-scale other than 1"):
        resolve(sd, settings)


@pytest.mark.usefixtures("letters")
def test_layers_that_a_transformer_lacks(folder):
    pipe = pipeline(folder, "sd3")
    layers = pipe.denoiser.fits["skip_layers"].n
    with pytest.raises(BadInput, match=f"--skip-layers {layers}: .* has layers 0 to {layers - 1}"):
        resolve(pipe, SETTINGS._replace(guidance_rule=GuidanceRule(slg_scale=2.5, skip_layers=(0, layers))))


def test_the_steps_that_skip():
    """20 steps, 0.01 to 0.2: diffusers' i in 1..3; sd-cli counts from 1 and stops before int(0.2 * 21) = 4."""
    assert [*DIFFUSERS.skipping_steps(20, 0.01, 0.2)] == [1, 2, 3]
    assert [*SDCPP.skipping_steps(20, 0.01, 0.2)] == [0, 1, 2]
    assert [*SDCPP.skipping_steps(4, 0.01, 0.2)] == []


@pytest.mark.jitted
@pytest.mark.usefixtures("letters")
def test_a_schedule_of_scales_and_rescale(folder):
    tensors = heard(pipeline(folder, "sd3"), guidance_schedule=(2.0, 5.0), guidance_rescale=0.6)
    for call, scale in enumerate((2.0, 5.0, 3.0, 3.0)):
        cond, uncond = tensors[f"calls.{call}.cond"], tensors[f"calls.{call}.uncond"]
        want = rescale(guide(cond, uncond, scale), cond, 0.6)
        np.testing.assert_allclose(tensors[f"steps.{call}.eps"], want, rtol=1e-9, atol=1e-12)


@pytest.mark.jitted
@pytest.mark.usefixtures("letters")
@pytest.mark.parametrize("family", ["sd3", "sd15"])
def test_no_pixel_of_what_is_denoised_is_longer_than_with_the_prompt_alone(folder, family):
    """ComfyUI's CFGNorm works on denoised latents, whatever the network predicts."""
    tensors = heard(pipeline(folder, family), cfg_norm=0.9)
    for step in range(4):
        x, sigma = tensors[f"steps.{step}.x"], tensors[f"steps.{step}.sigma"]
        cond, uncond = (x - sigma * tensors[f"calls.{step}.{name}"] for name in ("cond", "uncond"))
        want = hold_lengths(guide(cond, uncond, 3.0), cond, 0.9)
        np.testing.assert_allclose(tensors[f"steps.{step}.denoised"], want, rtol=1e-9, atol=1e-12)


@pytest.mark.jitted
@pytest.mark.usefixtures("letters")
def test_apg_remembers_the_call_before(folder):
    tensors, average = heard(pipeline(folder, "sd3"), apg_eta=0.2, apg_momentum=-0.5, apg_norm_threshold=1.0), None
    for call in range(4):
        cond, uncond = tensors[f"calls.{call}.cond"], tensors[f"calls.{call}.uncond"]
        limit = np.sqrt(cond.size) / 256
        difference, average = projected_difference(cond, uncond, 0.2, limit, -0.5, average)
        want = cond + 2 * difference
        np.testing.assert_allclose(tensors[f"steps.{call}.eps"], want, rtol=1e-9, atol=1e-12)


@pytest.mark.jitted
@pytest.mark.usefixtures("letters")
@pytest.mark.parametrize("family", ["sd3", "flux-dev"])
def test_layers_are_skipped_in_some_steps(folder, family):
    pipe = pipeline(folder, family)
    rule = GuidanceRule(slg_scale=2.0, skip_layers=(0,), skip_layer_start=0.2, skip_layer_end=0.8, slg_uncond=True)
    settings = SETTINGS._replace(width=16, height=16, guidance_rule=rule)
    plan, tensors = resolve(pipe, settings), {}
    assert [*plan.convention.skipping_steps(4, 0.2, 0.8)] == [1, 2]
    conditioning = txt2img.encode(pipe, plan)
    txt2img.sample(pipe, plan, conditioning, 42, listener=lambda name, x: tensors.update({name: np.array(x)}))
    assert [call for call in range(4) if f"calls.{call}.skipped" in tensors] == [1, 2]
    cond, uncond, skipped = (tensors[f"calls.1.{name}"] for name in ("cond", "uncond", "skipped"))
    want = guide(cond, uncond, 3.0) + 2.0 * (cond - skipped)
    np.testing.assert_allclose(tensors["steps.1.eps"], want, rtol=1e-9, atol=1e-12)
    assert not np.allclose(cond, skipped)
    inputs = {"x": tensors["calls.1.x"], "timesteps": tensors["calls.1.timesteps"]}
    text = conditioning.uncond
    assert text is not None
    inputs |= {"context": text.context, "y": text.y}
    inputs |= {"guidance": np.array([plan.guidance])} if plan.guidance else {}
    without = pipe.denoiser(inputs, "the same call", skip_layers=[0])["out"]
    np.testing.assert_allclose(uncond, without, rtol=1e-12)


def test_what_is_written_down(sd):
    rule = GuidanceRule(guidance_rescale=0.7, guidance_schedule=(7.5, 1.0))
    plan = resolve(sd, SETTINGS._replace(guidance_rule=rule))
    record = json.loads(json.dumps(plan.record()))
    assert record["guidance_rescale"] == 0.7 and record["guidance_schedule"] == [7.5, 1.0]
    assert "guidance_rescale: 0.7, guidance_schedule: 7.5 1," in parameters_text(plan, 42, {})
    assert "guidance_rescale" not in parameters_text(resolve(sd, SETTINGS), 42, {})
