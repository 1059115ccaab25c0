"""Without any package of an extra, what needs none works, and what needs one says which."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
OPTIONAL = (
    "torch diffusers transformers accelerate huggingface_hub "
    "onnx onnxscript onnxruntime dask distributed tornado fsspec s3fs"
)

_SCRIPT = """
import importlib.machinery
import sys
from typer.testing import CliRunner

found = importlib.machinery.PathFinder.find_spec
importlib.machinery.PathFinder.find_spec = lambda name, *rest: (
    None if name.partition(".")[0] in sys.argv[1].split() else found(name, *rest)
)
from refsd.cli import app
for arguments in sys.argv[2:]:
    done = CliRunner().invoke(app, arguments.split())
    print(done.exit_code, repr(done.exception))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("without")


def said(folder, *commands: str) -> list[str]:
    """A line for each command: its exit code and what it raised."""
    run = [sys.executable, "-c", _SCRIPT, OPTIONAL, *commands]
    lines = subprocess.run(run, cwd=folder, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(lines) == len(commands), lines
    return lines


def test_judging_needs_no_extra(folder):
    lines = said(
        folder,
        "golden make g --cases silu/f32/*",
        "conform refsd:float32 --golden g --cases silu/f32/*",
        "conform refsd:float32 --cases softmax/f32/* --report r",
        "export softmax/f32/* -o e",
        "engines",
        "sigmas --steps 4",
    )
    assert [line.partition(" ")[0] for line in lines] == ["0"] * len(lines), lines


NEEDING = {
    "golden make h --dask 2": ("Dask", "dask"),
    "conform refsd:float32 --dask tcp://127.0.0.1:8786": ("Dask", "dask"),
    "fuzz refsd --dask local": ("Dask", "dask"),
    f"conform refsd --cases {ROOT}/tests/fixtures/adopted/tiny": ("onnx", "onnx"),
    f"compare x.safetensors {ROOT}/tests/fixtures/adopted/tiny": ("onnx", "onnx"),
    "run-onnx x.onnx": ("onnx", "onnx"),
    "export softmax/f32/* --format onnx -o f": ("onnx", "onnx"),
    "adopt x.onnx -o h": ("onnx", "adopt"),
}


def test_what_needs_an_extra_says_which(folder):
    for (needs, extra), line in zip(NEEDING.values(), said(folder, *NEEDING), strict=True):
        assert f"needs {needs}: in refsd's clone: uv sync --extra {extra}," in line, line
        assert extra in EXTRAS
