"""The example at the end of each command's help runs, and ends with 0."""

import shlex
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper
from safetensors.numpy import save_file
from typer.testing import CliRunner

import refsd
from refsd.bench import kernels
from refsd.cli import app
from refsd.cli.listing import EXAMPLES, SUMMARIES
from refsd.golden.case import ModelRecipe
from refsd.weights import recipes

ENGINE = Path(__file__).parents[3] / "examples" / "exec" / "engine.py"
# Options that make an example quick.
QUICK = {
    "fuzz": "--minutes 0.02",
    "txt2img": "-W 64 -H 64 --steps 1",
    "range": "--steps 1",
    "quality": "--steps 0",
    "bench": "--threads 1 --runs 1",
}
_SMALLEST = "attention/L 1024 H 8 D 80"


def run(command: str):
    return CliRunner().invoke(app, shlex.split(command)[1:])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The files that the examples name."""
    folder = tmp_path_factory.mktemp("examples")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name in ("engine", "newer"):
            Path(name).write_text(f"#!/bin/sh\nexec {shlex.quote(sys.executable)} {shlex.quote(str(ENGINE))}\n")
            Path(name).chmod(0o755)
        recipes.make(ModelRecipe("sd15", "f32", True), Path("model.safetensors"))
        recipes.make(ModelRecipe("sd15", "f16", True), Path("other.gguf"))
        save_file({"z": np.ones((1, 4, 4, 6), np.float32)}, "in.safetensors")
        save_file({"x": np.ones((2, 3), np.float32)}, "inputs.safetensors")
        case = refsd.golden("softmax/f32/plain-x33x77")
        save_file({"y": np.asarray(case.truth["y"], np.float32)}, "dump.safetensors")
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])
        y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])
        graph = helper.make_graph([helper.make_node("Exp", ["x"], ["y"])], "g", [x], [y])
        Path("model.onnx").write_bytes(helper.make_model(graph).SerializeToString())
        assert run(f"{EXAMPLES['conform']} --submission mine.zip").exit_code == 0
        shutil.copytree("refsd-report", "reports")
    return folder


def test_every_command_has_an_example():
    assert list(EXAMPLES) == list(SUMMARIES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs(name, folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(kernels, "ROWS", {_SMALLEST: kernels.ROWS[_SMALLEST]})
    result = run(f"{EXAMPLES[name]} {QUICK.get(name, '')}")
    assert result.exit_code == 0, result.output
    shown = run(f"refsd {name} --help").output
    assert f"Example: {EXAMPLES[name]}" in " ".join(shown.split())
