"""refsd bench diffusion: any denoiser's inputs, which files sd-cli is given, and the memory of a step."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from refsd.bench import BenchRequest, diffusion, worker
from refsd.cli import app
from refsd.components import COMPONENTS, check
from refsd.golden.case import ModelRecipe
from refsd.models.catalogue import DENOISERS, NETWORKS
from refsd.module import Module
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT32
from refsd.numerics.tensor import StoredTensor
from refsd.weights import recipes
from refsd.weights.recipes import MODELS

pytestmark = pytest.mark.jitted

FAMILIES = [(family, part) for family, model in MODELS.items() for part in model.parts if part in DENOISERS]


def hollow(shape):
    """A tensor that has a shape and hardly any memory."""
    return StoredTensor("f32", shape, np.broadcast_to(np.float32(0), shape))


@pytest.mark.parametrize(("family", "part"), FAMILIES, ids=[family for family, _ in FAMILIES])
def test_every_denoiser_takes_what_is_drawn_for_it(family, part):
    shapes = NETWORKS[part].shapes(MODELS[family].parts[part].tiny)
    m = Module({name: hollow(shape) for name, shape in shapes.items()}, Arithmetic(FLOAT32))
    values = diffusion.inputs(part, m, 128, 5)
    check(part, m, values, {})
    assert values["x"].shape[-2:] == {"chroma-radiance": (128, 128), "flux2": (8, 8)}.get(part, (16, 16))
    assert values["context"].shape[1] == 5
    assert all(np.array_equal(again, values[name]) for name, again in diffusion.inputs(part, m, 128, 5).items())
    if part != "chroma-radiance":
        with pytest.raises(BadInput, match="--side 100: expected a multiple of"):
            diffusion.inputs(part, m, 100, 5)


@pytest.fixture(scope="module")
def zimage(tmp_path_factory):
    path = tmp_path_factory.mktemp("bench") / "zimage.gguf"
    return recipes.make(ModelRecipe("zimage", "q8_0", tiny=True), path)


def test_a_step_runs_and_says_what_it_is(zimage):
    rows, about = worker.refsd_rows(
        "diffusion", "", "", BenchRequest("diffusion", zimage, None, 1, side=32, tokens=3)
    )
    ((name, step),) = rows.items()
    assert name == "denoiser's step, 32x32 pixels"
    assert about["x"] == "16x4x4" and about["tokens of text"] == 3
    assert np.isfinite(step()["out"]).all()


def test_a_denoiser_alone_is_no_model_to_sd_cli(zimage):
    request = BenchRequest("diffusion", zimage, None, 1, {"--vae": Path("v")})
    assert diffusion.sd_cli_files(request) == ["--diffusion-model", str(zimage), "--vae", "v"]
    parts = {"--diffusion-model": zimage, "--llm": Path("l")}
    named = ["--diffusion-model", str(zimage), "--llm", "l"]
    assert diffusion.sd_cli_files(BenchRequest("diffusion", None, None, 1, parts)) == named


def test_a_worker_is_told_its_request(zimage, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", ["\n"])
    more = json.dumps({"parts": {"--diffusion-model": str(zimage)}, "side": 32, "tokens": 3})
    worker.main("refsd", "diffusion", "", "", more)
    setup, turn = map(json.loads, capsys.readouterr().out.splitlines())
    assert setup["x"] == "16x4x4"
    assert turn["seconds"]["denoiser's step, 32x32 pixels"] > 0 and turn["peak"] > 2**20


def test_who_is_not_asked_says_so():
    with pytest.raises(worker.Absent, match="no sd-cli"):
        worker.sd_cli_rows("diffusion", "", "")
    with pytest.raises(worker.Absent, match="GGUF"):
        worker.torch_rows("diffusion", "eager")


def test_no_model_is_bad_input():
    result = CliRunner().invoke(app, ["bench", "diffusion"])
    assert isinstance(result.exception, BadInput) and "--diffusion-model" in str(result.exception)


def test_components_of_the_table_exist():
    assert {*diffusion.PIXELS, *diffusion.TOKENS, *diffusion.TIMES} <= COMPONENTS.keys()
