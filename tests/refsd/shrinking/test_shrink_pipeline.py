"""Of a failing model the wrong operation is left, if it fails alone; trajectories and stages get smaller."""

import subprocess
import sys

import numpy as np
import pytest
from injection import Bug, Injected, wrong_operation
from safetensors.numpy import load_file
from typer.testing import CliRunner

from refsd.cases import CASES
from refsd.cli import app
from refsd.components.hollow import fits_of, hollow_module
from refsd.golden.operations import OPERATIONS
from refsd.numerics.profiles import FLOAT32
from refsd.shrinking import folder
from refsd.shrinking.failure import ask, cut, failure_of, runner_of
from refsd.shrinking.fewer_blocks import fewer_blocks
from refsd.shrinking.named_axes import sizes_of, with_sizes
from refsd.shrinking.shrink import shrink
from refsd.weights.checkpoint import open_checkpoint
from refsd.weights.recipe_files import RecipeFiles

CLIP = "clip-l/clip/ended"
PIPELINE = [case for case in CASES.values() if case.op not in OPERATIONS]


@pytest.fixture(scope="module")
def model_files(tmp_path_factory):
    with RecipeFiles(tmp_path_factory.mktemp("models")) as files:
        yield files


@pytest.fixture(scope="module")
def runner(model_files):
    return runner_of(model_files)


@pytest.fixture(scope="module")
def shrunk(runner, model_files):
    def run(bug: Bug, name: str, kind=Injected, explained=True):
        engine, case = kind(bug, FLOAT32, model_files), CASES[name]
        quick = runner._replace(explains=False)
        asked = runner if explained else quick
        found = shrink(
            lambda smaller: ask(asked, engine, smaller),
            case,
            ask(asked, engine, case),
            quick=lambda smaller: ask(quick, engine, smaller),
            cut=lambda smaller: cut(runner, engine, smaller),
        )
        return engine, found

    return run


def other_eps(self, right, x, weight=None, bias=None, eps=1e-5):
    return right(x, weight, bias, 100 * eps)


def without_bias(weights):
    """The weights with one norm's bias gone."""
    name = "text_model.encoder.layers.0.layer_norm1.bias"
    return {k: v._replace(data=0 * v.data) if k == name else v for k, v in weights.items()}


def shapes(of):
    return {name: tensor.shape for name, tensor in of.case.tensors.items()}


@pytest.mark.jitted
def test_the_wrong_operation_of_a_model_takes_its_place(shrunk, tmp_path):
    engine, found = shrunk(wrong_operation(layer_norm=other_eps), CLIP)
    assert found.case.op == "layer_norm" and found.tap == "text_model.encoder.layers.0.layer_norm1"
    assert found.whole and shapes(found)["x"] == (1, 2) and "eps is 0.001, not 1e-05" in found.result.causes
    folder.write(tmp_path / "out", found, engine, "injected")
    case = folder.read(tmp_path / "out")
    assert not folder.judge(engine, case).conforms
    assert folder.judge(Injected(Bug(), FLOAT32, None), case).conforms
    issue = (tmp_path / "out" / folder.ISSUE).read_text()
    assert f"In `{CLIP}` it is `{found.tap}`" in issue and not (tmp_path / "out" / folder.CPP).exists()
    folder.write(tmp_path / "out", found, engine, "ggml")
    assert "ggml_norm(" in (tmp_path / "out" / folder.CPP).read_text()


@pytest.mark.jitted
def test_where_no_operation_fails_alone_the_model_is_reduced(shrunk, tmp_path, model_files):
    """Its norm is right, but is given another bias in the model."""
    engine, found = shrunk(Bug(weights=without_bias), CLIP)
    assert found.case.op == "model/clip" and shapes(found) == {"input_ids": (1, 1)} and not found.tap
    assert found.case.params == {} and found.result.causes[0] == "bias missing"
    assert found.case.model.sizes == (("clip.layers", 1),)  # of two; the wrong bias is in the first
    files = folder.write(tmp_path / "out", found, engine, "injected", model_files)
    assert folder.PLACE in files
    place = load_file(tmp_path / "out" / folder.PLACE)
    assert place["x"].shape == place["truth"].shape == (1, 1, 128)
    gap = place["truth"].ravel() - place["found"].ravel() - place["bias"]
    assert np.abs(gap).max() < 1e-5 < np.abs(place["bias"]).max()
    case = folder.read(tmp_path / "out")
    assert folder.judge(engine, case, model_files).place == "text_model.encoder.layers.0.layer_norm1"
    assert folder.judge(Injected(Bug(), FLOAT32, model_files), case, model_files).conforms


class Untapped:
    """It shows nothing but its outputs."""

    def __init__(self, *how):
        engine = Injected(*how)
        self.name, self.version, self.run = engine.name, engine.version, engine.run
        self.refuses, self.numerics, self.deviations = engine.refuses, engine.numerics, engine.deviations


@pytest.mark.jitted
def test_a_model_without_taps_is_reduced_by_its_outputs(shrunk):
    _, found = shrunk(
        Bug(answer=lambda case, inputs, y: {k: 2 * v for k, v in y.items()}), "flux-dev/flux/between", Untapped
    )
    sizes = sizes_of(found.case)
    assert found.case.op == "model/flux" and (sizes["N"], sizes["J"], sizes["H"], sizes["W"]) == (1, 1, 2, 2)
    assert found.result.causes and found.cut is None


@pytest.mark.jitted
def test_a_model_without_taps_keeps_the_one_layer_that_fails(shrunk, tmp_path, model_files):
    louder = wrong_operation(attention=lambda self, right, q, *rest, **more: right(2 * q, *rest, **more))
    engine, found = shrunk(louder, CLIP, Untapped, explained=False)
    assert found.case.model.sizes == (("clip.layers", 1),)
    folder.write(tmp_path / "out", found, engine, "injected", model_files)
    assert "--tiny --size clip.layers=1 -o" in (tmp_path / "out" / folder.ISSUE).read_text()
    assert not folder.judge(engine, folder.read(tmp_path / "out"), model_files).conforms


@pytest.mark.filterwarnings("ignore:.*tensors missing")
@pytest.mark.parametrize("name", ["sd15/unet/between", "sd35-medium/mmdit/first-step", "flux-dev/flux/quiet", CLIP])
def test_models_of_fewer_blocks_are_models(name, model_files):
    """refsd opens the first of them with as many blocks as were asked for."""
    whole, smaller = CASES[name], [*fewer_blocks(CASES[name])]
    assert len({case.model.sizes for case in smaller}) == len(smaller) >= 1
    weights = [len(hollow_module(case).weights) for case in smaller]
    assert max(weights) < len(hollow_module(whole).weights)
    parts = open_checkpoint(model_files(smaller[0].model, "ldm")).components
    assert len(parts[whole.op.removeprefix("model/")].weights) == weights[0]


def test_a_trajectory_has_as_few_steps_as_the_bug_needs(shrunk):
    def late(case, inputs, y):
        x = np.array(y["x"])
        x[3:] *= 1.01
        return {**y, "x": x}

    _, found = shrunk(Bug(answer=late), "trajectory/dpmpp2m/karras")
    assert found.case.params["steps"] == 4 and shapes(found)["noise"] == (1, 1, 1, 1, 1)
    assert found.result.place == "x[3]"


def test_a_stage_has_as_short_a_prompt_as_the_bug_needs(shrunk, tmp_path):
    def drops(case, inputs, y):
        return {k: v[..., ::-1] for k, v in y.items()} if ":" in case.params["prompt"] else y

    engine, found = shrunk(Bug(answer=drops), "stage/clip_tokens/sdcpp-weights")
    before, after = CASES["stage/clip_tokens/sdcpp-weights"].params["prompt"], found.case.params["prompt"]
    assert ":" in after and len(after) <= 3 < len(before)
    files = folder.write(tmp_path / "out", found, engine, "injected")
    expected = load_file(tmp_path / "out" / folder.EXPECTED)
    assert folder.CPP not in files and np.array_equal(expected["truth.ids"], expected["found.ids"][..., ::-1])


@pytest.mark.parametrize("case", PIPELINE, ids=lambda case: case.name)
def test_the_sizes_of_a_case_make_it_again(case):
    assert with_sizes(case, {}) == case
    if case.model is not None:
        fits = fits_of(case)
        assert all(fits[name].holds(size) for name, size in sizes_of(case).items() if name in fits)


def test_a_full_model_becomes_a_tiny_one(shrunk, runner):
    from refsd.shrinking import pipeline_moves

    case = CASES["full/sd15/unet/quiet"]
    tiny = next(pipeline_moves.plainer_models(case))
    assert tiny.model.tiny and sizes_of(tiny)["E"] == 128 and sizes_of(case)["E"] == 768


@pytest.mark.jitted
def test_the_command_takes_models(tmp_path):
    done = CliRunner().invoke(app, ["shrink", "refsd:torch-bf16", CLIP, "-o", str(tmp_path / "out")])
    assert done.exit_code == 0 and "nothing to shrink" in done.output, done.output
    example = [sys.executable, "-P", "-m", "refsd", "shrink", "--help"]
    assert "first wrong" in subprocess.run(example, capture_output=True, text=True).stdout


def test_a_verdict_without_causes_is_the_same_but_for_them(runner, model_files):
    engine = Injected(wrong_operation(silu=lambda self, right, x: 2 * right(x)), FLOAT32, model_files)
    case = CASES["silu/f32/bend-x33x77"]
    whole, quick = ask(runner, engine, case), ask(runner._replace(explains=False), engine, case)
    assert whole.causes and not quick.causes and not quick.looks
    assert failure_of(quick) == failure_of(whole)._replace(causes=())
