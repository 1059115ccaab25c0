import json

import numpy as np
import pytest
from safetensors.numpy import load_file
from typer.testing import CliRunner

from refsd.cli import app
from refsd.conventions import CARDS
from refsd.numerics.errors import BadInput
from refsd.samplers.levels import SD_LEVELS

run = CliRunner()


@pytest.mark.parametrize("like", CARDS)
def test_sigmas(like):
    shown = run.invoke(app, ["sigmas", "--like", like, "--steps", "4"]).output.splitlines()
    assert shown[0].startswith(f"{like}, {CARDS[like].schedule}: 4 steps") and len(shown) == 7
    record = json.loads(run.invoke(app, ["sigmas", "--like", like, "--steps", "4", "--json"]).output)
    expected = CARDS[like].sigmas(4, CARDS[like].schedule, "euler", SD_LEVELS)
    np.testing.assert_array_equal(record["sigmas"], expected)
    assert record["timesteps"][-1] is None and record["first_noise_times"] > 4


@pytest.mark.parametrize(("like", "second"), [("sdcpp", 0.750375), ("comfyui", 0.75112), ("forge", 0.75112)])
def test_sigmas_of_a_flow(like, second):
    """SD 3's two steps of sgm_uniform: by way of (1 + 1/1000) / 2, or of (1 + 3/1002) / 2, then shifted."""
    flags = ["sigmas", "--like", like, "--flow-shift", "3", "--scheduler", "sgm_uniform", "--steps", "2", "--json"]
    record = json.loads(run.invoke(app, flags).output)
    np.testing.assert_allclose(record["sigmas"], [1, second, 0], atol=1e-5)
    np.testing.assert_allclose(record["timesteps"][:2], np.multiply(record["sigmas"][:2], 1000), rtol=1e-12)
    assert record["first_noise_times"] == 1


def test_the_default_of_a_flow():
    flags = ["sigmas", "--steps", "2", "--json", "--like"]
    flow = json.loads(run.invoke(app, [*flags, "diffusers", "--flow-shift", "3"]).output)
    assert flow["scheduler"] == "flow_linspace" and flow["sigmas"][0] == 1
    assert json.loads(run.invoke(app, [*flags, "sdcpp", "--flow-shift", "3"]).output)["scheduler"] == "discrete"
    refused = run.invoke(app, [*flags, "diffusers", "--scheduler", "flow_linspace"])
    assert isinstance(refused.exception, BadInput) and "diffusers has leading" in str(refused.exception)


def levels(*flags):
    shown = run.invoke(app, ["sigmas", *flags, "--json"])
    assert shown.exit_code == 0, shown.output
    return json.loads(shown.output)


def exponential(n, mu):
    """Black Forest Labs' time_shift of n even times, and 0."""
    t = 1 - np.arange(n) / n
    return [*(np.exp(mu) / (np.exp(mu) + 1 / t - 1)), 0]


def test_own_levels_are_judged_and_what_is_wrong_is_named(tmp_path):
    flags = ["sigmas", "--model", "flux-dev", "--steps", "20", "-W", "1024", "-H", "1024", "--compare"]
    for name, mu, says in (
        ("right", 1.15, "pass"),
        ("wrong", np.log(3), "reference agrees if shift 3 at every size"),
    ):
        mine = tmp_path / f"{name}.json"
        mine.write_text(json.dumps(exponential(20, mu)))
        np.savez(tmp_path / f"{name}.npz", sigmas=exponential(20, mu), other=np.ones(3))
        for file in (mine, mine.with_suffix(".npz")):
            shown = run.invoke(app, [*flags, str(file)])
            assert says in shown.output and shown.exit_code == (name == "wrong")
    assert "step 1 is 0.98275" in shown.output
    mine.write_text("{}")
    assert "expected a JSON list of sigmas" in str(run.invoke(app, [*flags, str(mine)]).exception)
    listed = run.invoke(app, ["sigmas", "--sigmas", "14.6,7,3,0", "--compare", str(tmp_path / "right.npz")])
    assert "no case has such levels of sdcpp" in str(listed.exception)


@pytest.mark.parametrize(
    "flags",
    [
        ("--model", "sd3"),
        ("--model", "qwen-image", "--like", "diffusers"),
        ("--model", "flux2-klein", "--like", "diffusers", "--strength", "0.6"),
        ("--like", "sdcpp", "--scheduler", "karras", "--strength", "0.5"),
        ("--like", "diffusers"),
        ("--flow-shift", "3"),
        ("--model", "flux-dev", "--like", "comfyui"),
        ("--model", "qwen-image", "--like", "comfyui", "--scheduler", "beta"),
    ],
)
def test_levels_that_cases_judge(tmp_path, flags):
    flags = ["--steps", "7", *flags]
    sigmas = levels(*flags)["sigmas"]
    for factor, code in ((1, 0), (1.01, 1)):
        (tmp_path / "mine.json").write_text(json.dumps({"sigmas": [factor * sigma for sigma in sigmas]}))
        shown = run.invoke(app, ["sigmas", *flags, "--compare", str(tmp_path / "mine.json")])
        assert shown.exit_code == code, shown.output


# Model, engine, size, steps -> mu, by the models' papers and repositories; FLUX.2's for 4096 tokens and 4 steps.
MUS = [
    ("flux-dev", "sdcpp", (1024, 1024), 20, 1.15),
    ("flux-dev", "diffusers", (256, 256), 20, 0.5),
    ("flux-dev", "diffusers", (1360, 768), 20, 0.5 + (85 * 48 - 256) * 0.65 / 3840),
    ("flux-schnell", "diffusers", (1024, 1024), 4, 0.0),
    ("flux2-klein", "sdcpp", (1024, 1024), 4, 2.2912),
    ("flux2-dev", "diffusers", (2048, 2048), 50, 0.00016927 * 16384 + 0.45666666),
    ("flux3", "diffusers", (1024, 1024), 50, np.log(6.93)),
    ("flux3-distilled", "diffusers", (512, 768), 16, np.log(6.93)),
    ("krea2", "diffusers", (1024, 1024), 28, 0.5 + 3840 * 0.65 / 6144),
    ("flux-dev", "comfyui", (512, 512), 20, 1.15),
    ("qwen-image", "comfyui", (512, 512), 8, 1.15),
    ("qwen-image21", "comfyui", (512, 512), 8, 0.69),
    ("krea2", "comfyui", (512, 512), 8, 1.15),
    ("flux2-klein", "comfyui", (1024, 1024), 4, 2.2912),
    ("zimage", "diffusers", (512, 512), 9, np.log(3)),
]


@pytest.mark.parametrize(("model", "like", "size", "steps", "mu"), MUS)
def test_sigmas_of_a_model_by_its_size(model, like, size, steps, mu):
    record = levels(
        *("--model", model, "--like", like, "-W", str(size[0]), "-H", str(size[1]), "--steps", str(steps))
    )
    np.testing.assert_allclose(np.log(record["shift"]), mu, atol=1e-4)
    if model != "zimage":
        np.testing.assert_allclose(record["sigmas"], exponential(steps, mu), atol=2e-5)
        np.testing.assert_allclose(record["timesteps"][:-1], record["sigmas"][:-1])


@pytest.mark.parametrize("model", ["qwen-image", "qwen-image21"])
def test_qwen_images_levels_end_at_their_terminal(model):
    record = levels("--model", model, "--like", "diffusers", "--steps", "50")
    assert record["scheduler"] == "flow_terminal" and record["sigmas"][-2] == pytest.approx(0.02)
    assert np.log(record["shift"]) == pytest.approx(0.5 + 3840 * 0.4 / 7936)


def test_a_flag_and_a_strength_of_a_model():
    assert levels("--model", "flux-dev", "--flow-shift", "1.15")["shift"] == pytest.approx(np.exp(1.15))
    assert len(levels("--model", "flux-dev", "--steps", "20", "--strength", "0.5")["sigmas"]) == 12


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--model", "fluxdev"], 'did you mean "flux-dev"'),
        (["--model", "sdxl"], "no flow model"),
        (["--model", "flux3", "--like", "comfyui"], "of sdcpp and diffusers, not of comfyui"),
        (["--model", "flux-dev", "--scheduler", "flux2"], "leave it out for the model's own"),
        (["--model", "flux-dev", "--sdxl"], "--sdxl does not go with it"),
        (["--scheduler", "flux2"], "size name it with --model"),
    ],
)
def test_refused_of_a_model(flags, says):
    refused = run.invoke(app, ["sigmas", *flags])
    assert isinstance(refused.exception, BadInput) and says in str(refused.exception)


def test_img2img():
    record = json.loads(run.invoke(app, ["sigmas", "--steps", "8", "--strength", "0.5", "--json"]).output)
    assert len(record["sigmas"]) == 6


def test_custom_sigmas():
    record = json.loads(run.invoke(app, ["sigmas", "--custom", "14.6,7,3,0", "--json"]).output)
    assert record["sigmas"] == [14.6, 7, 3, 0] and record["scheduler"] == "custom"
    assert record["timesteps"][1] == SD_LEVELS.to_t(7.0) and record["timesteps"][3] is None
    assert "custom: 3 steps" in run.invoke(app, ["sigmas", "--custom", "14.6,7,3,0"]).output


@pytest.mark.parametrize(("like", "kept"), [("sdcpp", 3), ("k-diffusion", 3), ("diffusers", 2)])
def test_custom_sigmas_of_img2img(like, kept):
    """Of four steps at strength 0.5 sdcpp runs int(4 * 0.5) + 1, diffusers int(4 * 0.5)."""
    flags = ["sigmas", "--sigmas", "14.6,7,3,1,0", "--strength", "0.5", "--like", like, "--json"]
    assert json.loads(run.invoke(app, flags).output)["sigmas"] == [14.6, 7, 3, 1, 0][-(kept + 1) :]


@pytest.mark.parametrize(
    ("like", "scheduler", "second"),
    [
        ("sdcpp", "ays", 6.3184485287),
        ("a1111", "align_your_steps", 6.315),
        ("forge", "align_your_steps_11", 6.315),
        ("forge", "align_your_steps_32", 11.1491618),
        ("forge", "align_your_steps_GITS", 4.734),
    ],
)
def test_sdxl_has_tables_of_its_own(like, scheduler, second):
    steps = {"ays": 10, "align_your_steps_32": 32}.get(scheduler, 11)
    flags = ["sigmas", "--like", like, "--scheduler", scheduler, "--steps", str(steps), "--json"]
    first, other = (json.loads(run.invoke(app, [*flags, *more]).output)["sigmas"] for more in ([], ["--sdxl"]))
    assert other[1] == second and first[1] != second and len(first) == len(other) == steps + 1


@pytest.mark.parametrize("given", [[], ["--sigmas", "1,0.9,0.8,0.7,0.5,0.3,0.1,0"]])
def test_diffusers_leaves_out_fewer_steps_of_a_flow(given):
    """int(7 - 7 * 0.6) = 2 steps are left out of a flow; of a UNet's schedule int(7 * 0.6) = 4 are run."""
    flags = ["sigmas", "--like", "diffusers", "--steps", "7", "--strength", "0.6", "--json", *given]
    flow = json.loads(run.invoke(app, [*flags, "--flow-shift", "1"]).output)["sigmas"]
    assert (len(flow), len(json.loads(run.invoke(app, flags).output)["sigmas"])) == (6, 5)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["sigmas", "--custom", "3,7"], "--sigmas: expected two or more falling numbers"),
        (["sigmas", "--custom", "3,x"], "--sigmas: expected numbers between commas, found '3,x'"),
        (
            ["sigmas", "--custom", "3,1,0", "--strength", "0.5", "--like", "comfyui"],
            "comfyui has no list",
        ),
        (["sigmas", "--sigmas", "3,1,0", "--strength", "0", "--like", "diffusers"], "diffusers runs no step"),
        (["sigmas", "--scheduler", "nothing"], "sdcpp has discrete, karras"),
        (["sigmas", "--scheduler", "gits", "--steps", "1"], "--scheduler gits, --steps 1: GITS has no table"),
        (["sigmas", "--like", "comfyui", "--strength", "0"], "comfyui runs no step of 20"),
        (["noise", "--shape", "4x64x64"], "expected four sizes"),
        (["noise", "--shape", "9999x9999x9x9"], "expected 1 to"),
        (["noise", "--shape", "1x0x9x9"], "expected 1 to"),
        (["noise", "--output", f"{__file__}/x.safetensors"], "its folder cannot be made"),
    ],
)
def test_bad_flags(flags, said):
    result = run.invoke(app, flags)
    assert isinstance(result.exception, BadInput) and said in str(result.exception)


@pytest.mark.parametrize("like", CARDS)
def test_noise(like, tmp_path):
    path = tmp_path / "noise.safetensors"
    shown = run.invoke(app, ["noise", "--like", like, "--shape", "2x4x3x5", "-o", str(path)]).output
    expected = CARDS[like].noise(42, (2, 4, 3, 5))
    np.testing.assert_array_equal(load_file(path)["noise"], expected)
    assert f"{expected.flat[0]:.7f}" in shown
    record = json.loads(run.invoke(app, ["noise", "--like", like, "--shape", "2x4x3x5", "--json"]).output)
    assert record["sha256"] in shown
