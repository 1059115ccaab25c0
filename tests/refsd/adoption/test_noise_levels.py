"""The rule of a run's noise levels is found from the levels, and is a case in a pipeline's folder."""

import json

import numpy as np
import pytest

from refsd.adoption.folder import PIPELINE, Pipeline, named, write_note
from refsd.adoption.noise_levels import case_of
from refsd.cases import CASES
from refsd.numerics.errors import BadInput
from refsd.stages import STAGES
from refsd.stages.stage import StageInputs
from tests.refsd.adoption.test_tiny import run


def levels_of(**params):
    stage = STAGES["stage/sigmas"]
    inputs = StageInputs({}, stage.complete({}, {"engine": "diffusers", **params}), np.dtype(np.float64))
    found = stage.run(stage.rule, inputs)
    # As schedulers keep them.
    return [found[name].astype(np.float32).astype(np.float64) for name in ("sigmas", "timesteps")]


@pytest.mark.parametrize(
    "params",
    [
        {"levels": "sd", "schedule": "linspace", "steps": 7},
        {"levels": "sd", "schedule": "trailing", "steps": 4},
        {"levels": "sd", "schedule": "leading", "steps": 4, "options": {"offset": 1}, "last": "lowest"},
        {"levels": "sd", "schedule": "leading_multistep", "steps": 6, "options": {"offset": 1}},
        {"levels": "sd-zero-snr", "schedule": "trailing", "steps": 5},
        {"levels": "flow", "schedule": "flow_uniform", "steps": 4, "shift": 3.0},
        {"levels": "flow", "schedule": "flow_linspace", "steps": 5, "shift": 1.73},
        {"levels": "flow", "schedule": "flow_terminal", "steps": 6, "shift": 2.2, "options": {"terminal": 0.02}},
    ],
    ids=lambda params: f"{params['levels']}-{params['schedule']}",
)
def test_the_rule_is_found(params):
    seen = levels_of(**params)
    case = case_of("x", *seen)
    assert case.name == "stage/sigmas/x" and case.params["levels"] == params["levels"]
    assert case.params["schedule"] == params["schedule"]
    assert case.params.get("last") == params.get("last")
    assert case.params.get("shift", 0) == pytest.approx(params.get("shift", 0), rel=1e-5)
    for again, y in zip(levels_of(**{k: v for k, v in case.params.items() if k != "engine"}), seen, strict=True):
        np.testing.assert_allclose(again, y, rtol=2e-5, atol=1e-6)


def test_levels_of_no_rule_are_no_case():
    sigmas, timesteps = levels_of(levels="flow", schedule="flow_uniform", steps=5, shift=3.0)
    assert case_of("x", sigmas, timesteps)
    for wrong, says in (
        ((sigmas, timesteps[1:]), "6 sigmas for 4 timesteps, expected 5"),
        ((sigmas[2:], timesteps[2:]), "3 steps: too few steps to tell; 4 or more"),
        ((np.zeros(0), np.zeros(0)), "no list of noise levels"),
        ((np.append(0.999, sigmas[1:]), timesteps), r"flow_uniform is nearest, with sigmas\[0\] 1, not 0.999"),
    ):
        with pytest.raises(BadInput, match=says):
            case_of("x", *wrong)
    sigmas[3] *= 1.01
    with pytest.raises(BadInput, match="no rule of refsd gives them; flow_"):
        case_of("x", sigmas, timesteps)


def test_a_folder_of_parts_names_them_and_its_levels(tiny, tmp_path):
    folder = tmp_path / "pipe"
    folder.mkdir()
    tiny.rename(folder / "tiny")
    levels = case_of("pipe", *levels_of(levels="sd", schedule="trailing", steps=4))
    pipeline = Pipeline({"made of": "Pipe"}, ["tiny"], {"vae": "too odd"}, [levels], "Euler")
    write_note(folder / PIPELINE, pipeline)
    for _ in range(2):
        assert named([str(folder), "conv2d/*"])[0] == ["graph/tiny", "stage/sigmas/pipe", "conv2d/*"]
    assert CASES["stage/sigmas/pipe"].params["schedule"] == "trailing"
    (tmp_path / "goldens").mkdir()
    listed = run("golden", "list", tmp_path / "goldens", "--cases", folder)
    assert "made  graph/tiny\n" in listed.output and "2 cases, 1 of them in" in listed.output, listed.output
    shown = run("golden", "show", folder)
    assert shown.exit_code == 0, shown.exception
    for line in (
        "pipe: Pipe, 1 network, scheduler Euler",
        "pipe/tiny: takes x [2, 3, 12, 8]",
        "stage/sigmas/pipe: engine diffusers, levels sd, schedule trailing, steps 4",
        "left out: vae: too odd",
    ):
        assert line in shown.output, shown.output
    assert json.loads(run("golden", "show", folder, "--json").output)["parts"] == ["tiny"]
    listed = json.loads((folder / PIPELINE).read_text())
    (levels,) = listed["stages"]
    for wrong in (
        {"stages": [levels | {"op": "picture"}]},
        {"stages": [levels | {"name": "stage/sigmas/sd-karras-n5"}]},
        {"parts": ["../tiny"]},
        {"parts": []},
        {"format": 1},
    ):
        (folder / PIPELINE).write_text(json.dumps(listed | wrong))
        with pytest.raises(BadInput, match="adopt it again"):
            named([str(folder)])
