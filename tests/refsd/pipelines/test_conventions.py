"""Conventions: no field in which all agree, nothing decided outside of them, and a third in one instance."""

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest
from small_pictures import pipeline

from refsd.conventions import CONVENTIONS
from refsd.conventions.diffusers import PICTURES as DIFFUSERS
from refsd.conventions.sdcpp import PICTURES as SDCPP
from refsd.pipelines import txt2img
from refsd.pipelines.plan import resolve
from refsd.pipelines.settings import Settings

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(SDCPP)])
def test_a_field_is_what_engines_differ_in(field):
    answers = [getattr(convention, field) for convention in CONVENTIONS.values()]
    assert any(answer != answers[0] for answer in answers)


def test_no_engine_is_asked_for_by_name_elsewhere():
    comparison = r"(==|!=| is| is not| in) [(\[]?(\"(sdcpp|diffusers|comfyui|a1111|forge)\"|(SDCPP|DIFFUSERS)\b)"
    for folder in ("refsd/pipelines", "refsd/families"):
        for path in {*(ROOT / folder).glob("*.py")}:
            assert not re.search(comparison, path.read_text()), path


@pytest.mark.jitted
@pytest.mark.usefixtures("letters")
@pytest.mark.parametrize("family", ["sd15", "sdxl", "flux-dev"])
def test_a_third_one_is_an_instance(folder, family, monkeypatch):
    """diffusers' but for its generator and its sizes."""
    third = dataclasses.replace(DIFFUSERS, name="third", rng="cuda", rounds_size_up=True, unet_multiple=4)
    monkeypatch.setitem(CONVENTIONS, "third", third)
    pipe = pipeline(folder, family)
    settings = Settings("a cat", "", 24, 13, steps=1, like="third")
    plan = resolve(pipe, settings)
    assert (plan.like, plan.width, plan.height, plan.rng) == ("third", 24, 16, "cuda")
    as_diffusers = resolve(pipe, settings._replace(height=16, rng="cuda", like="diffusers"))
    latents = [txt2img.sample(pipe, one, txt2img.encode(pipe, one), 42) for one in (plan, as_diffusers)]
    np.testing.assert_array_equal(*latents)
