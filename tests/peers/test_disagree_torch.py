"""A whole picture of diffusers' own pipeline, stage by stage beside the reference: small models in a folder."""

import json

import pytest
import torch
from float64_peers import redraw
from test_clip_skip import _text_model, sd1, sd3, sdxl  # noqa: F401
from test_pictures import BIGG
from typer.testing import CliRunner

from refsd.cli import app
from refsd.weights import detect

pytestmark = [
    pytest.mark.peer,
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"),
]

WORDS = ["-p", "a lovely cat", "-n", "the hat", "-W", "24", "-H", "16", "--steps", "2", "--cfg-scale", "4"]


@pytest.fixture(autouse=True)
def _small_bigg(monkeypatch):
    monkeypatch.setattr(detect, "_BIGG", BIGG)


def saved(folder, family):
    torch.manual_seed(0)
    kind, parts, more = family()
    for seed, part in enumerate(parts.values()):
        if isinstance(part, torch.nn.Module):
            redraw(part, seed)
    kind(**parts, **more).save_pretrained(folder)
    return folder


def disagree(folder, a, b, *more):
    done = CliRunner().invoke(app, ["disagree", a, b, "-m", str(folder), *WORDS, *more, "--json"])
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, json.loads(done.stdout)


@pytest.mark.parametrize("family", [sd1, sdxl, sd3])
def test_diffusers_draws_as_its_convention_says(tmp_path, family):
    code, outcome = disagree(saved(tmp_path, family), "diffusers:float32", "torch")
    apart = [
        (s["name"], s["distance"], s["explained"])
        for s in outcome["stages"]
        if len(s["shapes"]) == 2 and s["distance"] > s["explained"]
    ]
    assert code == 0, (outcome["reasons"], apart, outcome["settings"])
    margins = {stage["name"]: stage["margins"]["torch"] for stage in outcome["stages"] if stage["margins"]}
    expected = {"cond", "uncond", "sigmas", "steps.1.x", "calls.0.x", "calls.1.timesteps", "calls.1.uncond"}
    assert expected | {"latent", "image"} <= margins.keys() and max(margins.values()) < 0.9


def test_a_wrong_step_is_named(tmp_path, monkeypatch):
    from diffusers import EulerDiscreteScheduler

    right = EulerDiscreteScheduler.step
    folder = saved(tmp_path, sd1)
    monkeypatch.setattr(
        EulerDiscreteScheduler,
        "step",
        lambda self, y, t, x, **more: right(self, 1.05 * y, t, x, **more),
    )
    code, outcome = disagree(folder, "diffusers:float32", "torch")
    assert code == 1 and outcome["wrong"] == {"torch": "calls.1.x"}
