"""`refsd forward` by its command line: answers, files, and one line for each thing that can be wrong."""

import json
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
import tiny_models as tiny
from typer.testing import CliRunner

from refsd.cli import app
from refsd.cli.numerics import PROFILES as OFFERED_PROFILES
from refsd.components import ALIASES, COMPONENTS, forward, offered
from refsd.files.formats import open_weights
from refsd.files.writers import Spec, write_safetensors
from refsd.module import Module
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import PROFILES
from refsd.numerics.tensor import stored

# Plumbing: tests/refsd/models runs the same models unjitted.
pytestmark = pytest.mark.jitted

INPUTS = tiny.inputs()
CLIP = ("--param", "num_heads=4", "--param", "eos=99")


def save(path, tensors):
    write_safetensors(path, {name: Spec(t.type, t.shape) for name, t in tensors.items()}, tensors.values())


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "tiny.safetensors"
    save(path, tiny.checkpoint())
    return path


@pytest.fixture
def run(model, tmp_path):
    def run(component, inputs, *options, where=model):
        save(tmp_path / "in.safetensors", {name: stored(np.asarray(x)) for name, x in inputs.items()})
        arguments = ["forward", where, "--component", component, "--inputs", tmp_path / "in.safetensors"]
        arguments += ["-o", tmp_path / "out.safetensors", *options]
        result = CliRunner().invoke(app, [str(a) for a in arguments])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            assert not (tmp_path / "out.safetensors").exists()
            raise result.exception
        assert result.exit_code == 0, result.output
        return open_weights(tmp_path / "out.safetensors"), result.stdout

    return run


@pytest.mark.parametrize("component", ["unet", "clip", "vae-encoder", "vae-decoder"])
def test_it_writes_what_the_model_answers(component, run):
    out, said = run(component, INPUTS[component], *(CLIP if component == "clip" else ()))
    params = tiny.PARAMS.get(component)
    want = forward(component, Module(tiny.weights(tiny.PARTS[component])), INPUTS[component], params, also=True)
    assert set(out) == set(want)
    for name, y in want.items():
        assert out[name].type == "f64"
        np.testing.assert_allclose(out[name].values(), y, rtol=1e-11, atol=1e-13)
        assert name in said
    assert out.metadata["component"] == component
    assert out.metadata["numerics"] == "float64"
    assert len(out.metadata["model_header_sha256"]) == 64


def test_numerics_set_the_output_type_and_deviations_are_written_down(run):
    out, _ = run(
        "vae-decoder", INPUTS["vae-decoder"], "--numerics", "torch-bf16", "--deviation", "sdcpp/group-norm-eps"
    )
    assert out["out"].values().dtype == ml_dtypes.bfloat16
    assert out.metadata["deviations"] == "sdcpp/group-norm-eps"


def test_params_reach_the_model(run):
    plain, _ = run("clip", INPUTS["clip"], *CLIP)
    plain = plain["last_hidden_state"].values().copy()
    skipped, _ = run("clip", INPUTS["clip"], *CLIP, "--param", "clip_skip=2")
    assert np.abs(skipped["last_hidden_state"].values() - plain).max() > 1e-3
    assert json.loads(skipped.metadata["params"])["clip_skip"] == 2


def test_heads_of_each_level(run):
    listed, _ = run("unet", INPUTS["unet"], "--param", "num_heads=4,16")
    want = forward("unet", Module(tiny.weights("unet")), INPUTS["unet"], {"num_heads": [4, 16]})
    np.testing.assert_allclose(listed["out"].values(), want["out"], rtol=1e-11, atol=1e-13)
    for one in (4, 16):
        other = forward("unet", Module(tiny.weights("unet")), INPUTS["unet"], {"num_heads": one})
        assert np.abs(want["out"] - other["out"]).max() > 1e-6


def test_taps(run, tmp_path):
    _, said = run("unet", INPUTS["unet"], "--taps", tmp_path / "taps.safetensors", "--tap", "input_blocks.1*")
    blocks = open_weights(tmp_path / "taps.safetensors")
    assert "input_blocks.1.0" in blocks
    assert f"{len(blocks)} taps in {tmp_path}/taps.safetensors: `refsd info --tensors {tmp_path}/" in said
    assert all(name.startswith("input_blocks.1") for name in blocks)
    run("unet", INPUTS["unet"], "--taps", tmp_path / "taps.safetensors", "--tap", "input_blocks.1*", "--tap-ops")
    assert {*blocks, "input_blocks.1.0.in_layers.2"} <= set(open_weights(tmp_path / "taps.safetensors"))


def test_json(run):
    out, said = run("vae-encoder", INPUTS["vae-encoder"], "--json")
    rows = {row["name"]: row for row in json.loads(said)["outputs"]}
    assert set(rows) == {"mean", "logvar"}
    mean = out["mean"].values()
    assert rows["mean"]["shape"] == list(mean.shape)
    assert rows["mean"]["dtype"] == "float64"
    assert rows["mean"]["min"] == mean.min()
    assert rows["mean"]["rms"] == pytest.approx(np.sqrt((mean**2).mean()))


def test_integers_and_halves_are_taken_where_floats_are_asked_for(run):
    x, context = (INPUTS["unet"][name].astype(np.float16) for name in ("x", "context"))
    inputs = {"x": x, "context": context.astype(ml_dtypes.bfloat16), "timesteps": np.array([999, 0])}
    out, _ = run("unet", inputs)
    want = forward("unet", Module(tiny.weights("unet")), {name: a.astype(float) for name, a in inputs.items()})
    np.testing.assert_allclose(out["out"].values(), want["out"], rtol=1e-11, atol=1e-13)


def unet(**changed):
    given = {**INPUTS["unet"], **changed}
    return {name: x for name, x in given.items() if x is not None}


NAN = np.where(np.arange(24).reshape(1, 1, 4, 6) == 7, np.nan, INPUTS["unet"]["x"])
BAD = {
    "missing": ("unet", unet(context=None), r"unet takes x \[N, C, H, W\], .* found timesteps, x"),
    "extra": ("unet", unet(z=np.zeros(3)), r"found context, timesteps, x, z"),
    "a name of two lines": ("unet", unet(**{"y\nz": np.zeros(3)}), r"found context, timesteps, x, y.nz"),
    "no use": ("unet", unet(y=np.zeros((2, 3))), r"tensor y \[N, A\] is of no use: the weights have no label_emb"),
    "no ControlNet": ("unet", unet(hint=np.zeros((2, 3, 32, 48))), r"tensor hint .* name one with --control-net"),
    "rank": ("unet", unet(x=np.zeros((2, 4, 4))), r"tensor x has shape \[2, 4, 4\], expected \[N, C, H, W\]"),
    "empty": ("unet", unet(x=np.zeros((2, 4, 0, 6))), r"tensor x has shape \[2, 4, 0, 6\]"),
    "channels": ("unet", unet(x=np.zeros((2, 3, 4, 6))), r"C is 3, the model takes 4"),
    "batch": ("unet", unet(timesteps=np.zeros(1)), r"tensor timesteps .* N is 1 here and 2 in another"),
    "width": ("unet", unet(context=np.zeros((2, 5, 8))), r"E is 8, the model takes 24"),
    "nan": ("unet", unet(x=NAN), r"tensor x holds NaN or infinity"),
    "infinite": ("unet", unet(timesteps=np.array([np.inf, 1])), r"tensor timesteps holds NaN or infinity"),
    "float ids": ("clip", {"input_ids": np.ones((1, 3))}, r"tensor input_ids is float64, expected int64"),
    "ids": ("clip", {"input_ids": np.array([[98, 100]])}, r"ids 98..100, the model knows 0..99"),
    "negative ids": ("clip", {"input_ids": np.array([[-1, 9]])}, r"ids -1..9"),
    "long": ("clip", {"input_ids": np.ones((1, 10), int)}, r"L is 10, the model takes at most 9"),
    "picture": ("vae-encoder", {"x": np.zeros((1, 3, 1, 4))}, r"H is 1, the model takes at least 2"),
    "latent": ("vae-decoder", {"z": np.zeros((1, 16, 5, 4))}, r"Z is 16, the model takes 4"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_inputs_are_told_in_one_line(what, run):
    component, inputs, says = BAD[what]
    with pytest.raises(BadInput, match=says) as error:
        run(component, inputs, *(CLIP if component == "clip" else ()))
    assert "in.safetensors: " in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--numerics", "fp8"), "--numerics fp8: expected one of float64, float32"),
        (("--deviation", "sdcpp/nonsense"), r"--deviation sdcpp/nonsense .*: expected one of sdcpp/"),
        (("--param", "clip_skip"), "--param clip_skip: expected NAME=VALUE"),
        (("--param", "clip_skip=2"), "unet has no param clip_skip; it has num_heads, num_groups"),
        (("--param", "num_heads=5"), "num_heads is 5, the model takes a divisor of 32"),
        (
            ("--param", "num_heads=8,5"),
            r"num_heads is \[8, 5\], .* one for each level, which has the channels 32, 64",
        ),
        (("--param", "num_heads=8,8,8"), r"num_heads is \[8, 8, 8\]"),
        (("--param", "num_heads=8,0"), r"num_heads is \[8, 0\]"),
        (("--param", "num_groups=8,8"), r"num_groups is '\[8, 8\]', expected something like 32"),
        (("--param", f"num_heads={'9' * 5000}"), "num_heads is '99"),
    ],
)
def test_bad_options_are_told_in_one_line(options, says, run):
    with pytest.raises(BadInput, match=says) as error:
        run("unet", INPUTS["unet"], *options)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 1000


def test_an_unknown_component(run):
    with pytest.raises(BadInput, match=r"flux-double: expected one of controlnet, .*, unet, .*, diffusion"):
        run("flux-double", INPUTS["flux-double"])


def test_a_component_that_the_file_lacks(run, tmp_path):
    save(tmp_path / "vae.safetensors", tiny.weights("vae"))
    with pytest.raises(BadInput, match="unet needs unet; the file holds vae"):
        run("unet", INPUTS["unet"], where=tmp_path / "vae.safetensors")
    run("vae-decoder", INPUTS["vae-decoder"], where=tmp_path / "vae.safetensors")


def test_exit_code_2_without_a_traceback(model, tmp_path):
    command = [
        sys.executable,
        "-P",
        "-c",
        "from refsd.cli import main; main()",
        "forward",
        model,
        "--component",
        "unet",
    ]
    command += ["--inputs", tmp_path / "none.safetensors", "-o", tmp_path / "out.safetensors"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 2
    assert result.stderr.startswith("refsd: ")
    assert len(result.stderr.splitlines()) == 1
    assert "none.safetensors" in result.stderr


def test_every_component_is_listed_with_the_shapes_of_its_tensors():
    text = CliRunner().invoke(app, ["forward", "--components"]).output
    for name in set(offered()) - ALIASES.keys():
        for argument, wanted in COMPONENTS[name].arguments.items():
            assert f"{argument} [{wanted.shape.replace(' ', ', ')}]" in text
    assert "timesteps [N]" in text and "clip_l is clip" in text
    help = CliRunner().invoke(app, ["forward", "--help"], terminal_width=200).output
    assert "timesteps [N]" not in help and "--components" in help


def test_the_command_line_names_the_profiles_that_there_are():
    assert tuple(PROFILES) == OFFERED_PROFILES
