"""refsd disagree on a whole picture: settings, stages, where they part, which dump is wrong and why."""

import json
import re

import numpy as np
import pytest
import small_pictures
from PIL import Image
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

from refsd.cli import app
from refsd.disagreement import pictures
from refsd.engines.torch import drawing
from refsd.golden.engine import EngineFailure
from refsd.numerics.errors import BadInput
from refsd.pipelines.settings import Settings
from refsd.samplers.levels import SD_LEVELS
from refsd.samplers.noise import TorchCpu
from refsd.samplers.schedules import SCHEDULES

pytestmark = pytest.mark.jitted  # whole models

PROMPT = "a (lovely:1.3) cat"
SETTINGS = ["-p", PROMPT, "-W", "64", "-H", "64", "--steps", "2", "--cfg-scale", "1"]


def call(command, *arguments):
    result = CliRunner().invoke(app, [command, *map(str, arguments)])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def disagree(tiny, a, b, *more):
    result = call("disagree", a, b, "-m", tiny, *SETTINGS, *more)
    return result.exit_code, result.stdout


def as_json(tiny, a, b, *more):
    code, said = disagree(tiny, a, b, *more, "--json")
    outcome = json.loads(said)
    stages = {stage["name"]: stage for stage in outcome["stages"]}
    parts = [
        name
        for name, stage in stages.items()
        if len(stage["shapes"]) == 2 and (stage["distance"] is None or stage["distance"] > stage["explained"])
    ]
    return code, outcome, stages, parts


@pytest.fixture(scope="module", autouse=True)
def _drawn_once():
    """The reference's walks are the same in many of these tests."""
    drawn, run = {}, pictures.run_picture

    def once(pipe, plan):
        precision = pipe.denoiser.module.arithmetic.numerics.name
        key = precision, plan.like, plan.sampler, plan.schedule, plan.rng, plan.from_image, plan.strength
        key += plan.prompt, plan.cfg_scale, len(plan.sigmas)
        return drawn[key] if key in drawn else drawn.setdefault(key, run(pipe, plan))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pictures, "run_picture", once)
        yield


@pytest.fixture(scope="module")
def taps(tiny, tmp_path_factory):
    path = tmp_path_factory.mktemp("taps") / "taps.safetensors"
    call("txt2img", "-m", tiny, *SETTINGS, "--taps", path, "-o", path.with_suffix(".png"))
    return load_file(path)


@pytest.fixture
def dump(taps, tmp_path):
    """Write the tensors with some of them changed."""

    def write(name, **changes):
        path = tmp_path / f"{name}.safetensors"
        changed = {key.replace("_", "."): y for key, y in changes.items()}
        save_file({k: np.ascontiguousarray(y) for k, y in {**taps, **changed}.items() if y is not None}, path)
        return f"dump:{path}"

    return write


def test_two_conventions_part_at_their_own_stages_each_with_its_cause(tiny):
    code, outcome, stages, parts = as_json(tiny, "diffusers", "sdcpp")
    assert code == 1
    settings = {one["name"]: (one["a"], one["b"]) for one in outcome["settings"]}
    assert settings["rng"] == ("cpu", "cuda") and settings["schedule"] == ("leading", "discrete")
    assert settings["sampler"] == ("euler", "euler_a") and settings["convention.prompt"] == ("diffusers", "sdcpp")
    roots = {root["stage"]: root["causes"] for root in outcome["roots"]}
    assert roots["tokens.cond.clip"] == ["all of it is how a prompt is parsed and weighed: diffusers and sdcpp"]
    assert roots["noise"] == ["all of it is rng cpu and cuda"]
    assert roots["sigmas"] == ["schedule leading and discrete"]
    assert "steps differ too" in outcome["inherited"] and "sampler euler and euler_a" in outcome["inherited"]
    assert parts[0] == "tokens.cond.clip" and parts[-1] == "image" and outcome["wrong"] == {}
    assert list(stages)[:2] == ["tokens.cond.clip", "tokens.cond.weights"]


def test_a_timestep_is_told_from_its_level_and_one_that_is_0_is_no_parting(tiny):
    """ComfyUI gives the network the nearest trained timestep, diffusers one between two: of Karras' levels."""
    flags = ("-p", "a cat", "--sampling-method", "euler", "--scheduler", "karras", "--rng", "cpu")
    flags += ("--cfg-scale", "7", "--steps")
    code, outcome, _, parts = as_json(tiny, "comfyui", "diffusers", *flags, "4")
    (root,) = outcome["roots"]
    assert code == 1 and root["stage"] == parts[0] == "calls.1.timesteps"
    assert (
        root["causes"][0].startswith("all of it is levels 1000 from") and "given the nearest" in root["causes"][0]
    )
    told = disagree(tiny, "comfyui", "diffusers", *flags, "4")[1]
    assert re.search(r"more; --json has all\n  part  timestep at call 1 .* apart", told)
    # The last of two levels is the lowest trained one: timestep 0 beside 1e-15.
    code, outcome, _, parts = as_json(tiny, "comfyui", "diffusers", *flags, "2")
    assert (code, outcome["roots"], parts) == (0, [], [])


def test_comfyui_and_a1111_part_at_the_rules_in_which_they_differ(tiny):
    code, outcome, _, _ = as_json(tiny, "comfyui", "a1111", "--steps", "3")
    settings = {one["name"]: (one["a"], one["b"]) for one in outcome["settings"]}
    assert settings["rng"] == ("cpu", "nv")
    assert settings["convention.whole_batch"] == ("True", "False")
    roots = {root["stage"]: root["causes"] for root in outcome["roots"]}
    assert code == 1 and roots["cond"] == ["all of it is how a prompt is parsed and weighed: comfyui and a1111"]
    assert roots["noise"] == ["all of it is rng cpu and nv"]
    assert roots["sigmas"][0] == "schedule discrete and karras"
    assert "sampler euler and dpm++2m" in outcome["inherited"]


def test_what_follows_is_inherited_where_only_the_beginnings_differ(tiny):
    chosen = "--sampling-method", "euler", "--scheduler", "karras", "--rng", "cpu"
    code, outcome, stages, parts = as_json(tiny, "diffusers", "sdcpp", *chosen)
    assert code == 1 and "all that follows is inherited" in outcome["inherited"]
    assert stages["noise"]["distance"] == 0 and "noise" not in parts and "image" in parts
    assert outcome["roots"][0]["stage"] == "tokens.cond.clip"
    assert stages["sigmas"]["distance"] == 0


def test_one_convention_in_two_precisions_agrees(tiny):
    code, said = disagree(tiny, "sdcpp", "sdcpp:torch-f16")
    assert code == 0 and "every setting is the same" in said and "they agree" in said


def test_an_honest_dump_conforms(tiny, dump):
    code, said = disagree(tiny, "sdcpp", dump("honest"))
    assert code == 0 and "conforms to the reference under its own convention" in said
    assert "in one of them alone: 2 stages: token ids of cond for clip" in said


WRONG = {
    "noise": (
        {"0_noise": lambda t: TorchCpu(42).randn(t["0.noise"].shape).astype(np.float32)},
        "noise",
        "the reference agrees if rng cuda and cpu",
    ),
    "a schedule": (
        {
            f"0_steps_{i}_sigma": (lambda t, i=i: np.array(SCHEDULES["simple"](2, SD_LEVELS)[i], np.float32))
            for i in (0, 1)
        },
        "sigmas",
        "the noise levels are those of simple",
    ),
    "a step": ({"0_steps_1_x": lambda t: 1.01 * t["0.steps.1.x"]}, "steps.1.x", "steps.1.x: "),
    "the network": ({"0_calls_1_cond": lambda t: 1.01 * t["0.calls.1.cond"]}, "calls.1.cond", "calls.1.cond: "),
    "the decoder": ({"0_image": lambda t: t["0.image"][..., ::-1]}, "image", "image: "),
    "a latent of another size": (
        {"0_latent": lambda t: t["0.latent"][:, :, :4]},
        "latent",
        "has shape [1, 4, 4, 8], expected [1, 4, 8, 8]",
    ),
}


@pytest.mark.parametrize("bug", WRONG)
def test_of_two_dumps_the_wrong_one_is_named_with_its_first_wrong_stage(tiny, taps, dump, bug):
    changes, stage, reason = WRONG[bug]
    honest, wrong = dump("honest"), dump("wrong", **{name: change(taps) for name, change in changes.items()})
    code, outcome, stages, parts = as_json(tiny, wrong, honest)
    assert code == 1 and outcome["wrong"] == {wrong: stage} and parts[0] == stage
    assert reason in outcome["reasons"][wrong]
    assert stages[stage]["margins"][wrong] > 1 > stages[stage]["margins"][honest]


@pytest.fixture(scope="module")
def picture(tmp_path_factory):
    path = tmp_path_factory.mktemp("picture") / "start.png"
    Image.fromarray(np.random.default_rng(4).integers(0, 256, (64, 64, 3), np.uint8)).save(path)
    return path


def test_pictures_that_start_from_a_picture_are_compared_from_its_latent_on(tiny, picture):
    """diffusers draws the posterior's sample and the noise from one stream, sdcpp each from its own."""
    chosen = (
        "-i",
        picture,
        "--strength",
        "0.5",
        "--sampling-method",
        "euler",
        "--scheduler",
        "karras",
        "--rng",
        "cpu",
    )
    code, outcome, stages, parts = as_json(tiny, "diffusers", "sdcpp", *chosen)
    roots = {root["stage"]: root["causes"] for root in outcome["roots"]}
    assert code == 1 and stages["init"]["title"] == "latent of the picture to start from"
    assert roots["noise"] == ["all of it is one random stream for posterior and noise: yes and no"]
    assert "steps.0.x" in parts and ("init" in parts) == ("init" in roots)
    code, outcome, stages, parts = as_json(tiny, "sdcpp", "sdcpp:torch-f16", *chosen)
    assert code == 0 and not parts and stages["init"]["distance"] > 0


def test_flows_are_compared(folder, letters):
    family = "flux-schnell"
    (folder / family).mkdir(exist_ok=True)
    parts = small_pictures.files(folder / family, family)
    named = [word for flag, file in parts.items() for word in (flag, file)]
    chosen = "-p", "a cat", "-W", "32", "-H", "32", "--steps", "2", "--rng", "cpu", "--json"
    outcome = json.loads(call("disagree", "diffusers", "sdcpp:float32", *named, *chosen).stdout)
    names = [stage["name"] for stage in outcome["stages"] if len(stage["shapes"]) == 2]
    assert {"cond", "sigmas", "noise", "steps.1.x", "calls.1.cond", "image"} <= {*names}, outcome
    roots = {root["stage"]: root["causes"] for root in outcome["roots"]}
    assert roots.keys() == {"tokens.cond.t5", "sigmas"} and roots["sigmas"][0].startswith(
        "levels 1000 from 0.001 to 1 "
    )
    assert roots["tokens.cond.t5"] == ["all of it is the family's rules of text and schedule: diffusers and sdcpp"]
    assert "all that follows is inherited" in outcome["inherited"] and outcome["wrong"] == {}


def test_a_program_is_not_asked_for_a_picture_from_a_picture(tiny, picture):
    with pytest.raises(BadInput, match="sd-cli: an engine is looked into only where it draws without --init-img"):
        disagree(tiny, "sdcpp", "sdcpp:build/sd-cli", "-i", picture)


def test_a_program_that_draws_is_judged_as_its_convention(tiny, taps, monkeypatch):
    """Its flags are those that were given, and what it leaves to itself is what the reference resolves."""
    asked = []

    def draw(program, args, pipe, plan):
        asked.append((program, args, plan.sampler))
        return {name.removeprefix("0."): y for name, y in taps.items() if "steps" not in name}

    monkeypatch.setattr("refsd.engines.sdcpp.program.Program", lambda path: path.name)
    monkeypatch.setattr("refsd.engines.sdcpp.picture.draw", draw)
    code, _, stages, parts = as_json(tiny, "sdcpp", "sdcpp:build/sd-cli")
    words = ["-p", PROMPT, "-W", "64", "-H", "64", "--steps", "2", "--cfg-scale", "1.0", "-s", "42"]
    assert asked == [("sd-cli", ["-m", str(tiny), *words], "euler_a")]
    assert code == 0 and not parts and stages["image"]["margins"]["sdcpp:build/sd-cli"] < 1
    monkeypatch.setattr("refsd.engines.sdcpp.picture.draw", fails)
    with pytest.raises(BadInput, match="sdcpp:build/sd-cli: no such luck"):
        disagree(tiny, "sdcpp", "sdcpp:build/sd-cli")


def fails(*_):
    raise EngineFailure("no such luck")


def test_a_folder_that_diffusers_cannot_draw_from_is_refused(tmp_path):
    settings = Settings("a cat")
    for text, changed, said in (
        ("[1", {}, "model_index.json: no list of components in JSON"),
        ("{}", {"sampler": "euler"}, "leave out --sampling-method"),
    ):
        (tmp_path / "model_index.json").write_text(text)
        with pytest.raises(EngineFailure, match=said):
            drawing.draw(tmp_path, "float32", settings._replace(**changed), None)


def test_bad_input_is_one_line(tiny, tmp_path):
    (tmp_path / "none.safetensors").write_bytes(b"none")
    save_file({"x": np.ones(3)}, tmp_path / "other.safetensors")
    for a, more, said in (
        ("diffuser", (), "did you mean"),
        ("onnxruntime", (), "for a picture expected a convention (sdcpp, a1111,"),
        ("torch", (), "diffusers draws from a folder with model_index.json"),
        ("dump", (), "dump:FILE"),
        ("sdcpp:nowhere/sd-cli", (), "sdcpp:nowhere/sd-cli: "),
        ("diffusers:nowhere", (), "for a picture expected"),
        ("dump:nowhere.npz", (), "nowhere.npz: no such file or folder"),
        (f"dump:{tmp_path}/none.safetensors", (), "none.safetensors"),
        (f"dump:{tmp_path}/other.safetensors", (), "has x: expected cond, 0.noise"),
        ("sdcpp", ("silu/*",), "silu/*: with --prompt a picture is compared"),
        ("sdcpp", ("--steps", "0"), "--steps 0: expected 1 to 1000"),
    ):
        with pytest.raises(BadInput) as error:
            disagree(tiny, a, "sdcpp", *more)
        assert said in str(error.value) and "\n" not in str(error.value)


def test_a_recipe_is_a_model(tiny):
    """The stages are those of its file."""
    recipe, file = (as_json(model, "sdcpp", "diffusers")[2] for model in ("recipe:sd15:f16:tiny", tiny))
    assert recipe == file
