"""refsd export: what is written is the case, in every format; the index says so; C++ reads it."""

import hashlib
import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader
from safetensors.numpy import load_file
from typer.testing import CliRunner

import refsd
from refsd.cases import CASES
from refsd.cli import app
from refsd.numerics.errors import BadInput

ROOT = Path(__file__).parents[3]
SILU = "silu/f32/bend-x33x77"
BF16 = "linear/bf16/awkward-x2x33x77-o20"
BLOCKS = next(name for name in CASES if name.startswith("linear/q4_k"))
TAE = "taesd/tae-decoder/outliers"
DTYPES = {"f32": "<f4", "f64": "<f8", "f16": "<f2", "i64": "<i8"}


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REFSD_CACHE", str(tmp_path / "cache"))


def _call(*arguments: str):
    return CliRunner().invoke(app, ["export", *arguments])


def _export(*arguments: str) -> dict:
    done = _call(*arguments)
    assert done.exit_code == 0, done.output + repr(done.exception)
    return json.loads(Path("out/index.json").read_text())


def read(written: str, entry: dict, name: str) -> np.ndarray:
    """A tensor as a stranger would read it, by the index alone."""
    path = Path("out") / entry["file"]
    if written == "npy":
        y = np.load(path)
    elif written == "safetensors":
        y = load_file(path)[name]
    elif written == "gguf":
        (tensor,) = [t for t in GGUFReader(path).tensors if t.name == name]
        assert tensor.tensor_type.name.lower() == entry["type"]
        y = np.asarray(tensor.data)
    else:
        dtype, _, shape = entry.get("stored", "").partition(" ")
        shape = json.loads(shape or "null") or entry["shape"]
        y = np.frombuffer(path.read_bytes(), dtype or DTYPES[entry["type"]]).reshape(shape)
    return y


@pytest.mark.parametrize("written", ["npy", "safetensors", "bin", "gguf"])
def test_what_is_written_is_the_case(written):
    index = _export(SILU, BF16, BLOCKS, "-o", "out", "--format", written)
    assert (index["byte_order"], index["written"], index["numerics"]) == ("little", written, "float32")
    for name in (SILU, BF16, BLOCKS):
        case, entry = refsd.golden(name), index["cases"][name]
        assert entry["params"] == case.params and entry["op"] == case.op
        for group, expected in (("inputs", case.inputs), ("truth", case.truth), ("bound", case.bound)):
            assert entry[group].keys() == expected.keys()
            for key, y in expected.items():
                found = read(written, entry[group][key], key)
                assert found.tobytes() == y.tobytes(), (name, group, key)
        assert {key: one["type"] for key, one in entry["inputs"].items()} == case.types
    for path, note in index["files"].items():
        data = (Path("out") / path).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (note["bytes"], note["sha256"])
    assert {*index["files"], "index.json"} == {
        path.relative_to("out").as_posix() for path in Path("out").rglob("*") if path.is_file()
    }


@pytest.mark.jitted
@pytest.mark.parametrize("written", ["safetensors", "bin"])
def test_a_model_comes_with_its_weights_and_taps(written):
    index = _export(TAE, "-o", "out", "--format", written, "--taps")
    case, entry = refsd.golden(TAE), index["cases"][TAE]
    assert entry["model"] == "taesd-tiny-f32"
    theirs, ours = index["weights"]["taesd-tiny-f32"], load_file(case.weights)
    assert theirs.keys() == ours.keys()
    for name, weight in ours.items():
        assert read(written, theirs[name], name).tobytes() == weight.tobytes()
    taps = refsd.forward(case.weights, "tae-decoder", taps="*", **case.inputs).taps
    for name, y in taps.items():
        assert np.array_equal(read(written, entry["taps"][name], name), y)
    bare = _export(TAE, "-o", "out", "--force", "--no-weights")
    assert not bare.get("weights") and "model" not in bare["cases"][TAE] and "taps" not in bare["cases"][TAE]


def test_nothing_is_overwritten_unasked(tmp_path):
    _export(SILU, "-o", "out")
    for arguments, text in (
        ((SILU, "-o", "out"), "exists; name another folder, or pass --force"),
        ((SILU, "-o", "theirs", "--force"), "not written by refsd"),
        (("silu/f16/*", "-o", "new"), "no case matches"),
        ((SILU, "-o", "new", "--numerics", "f8"), "expected one of float64"),
    ):
        Path("theirs").mkdir(exist_ok=True)
        Path("theirs/thesis.txt").touch()
        done = _call(*arguments)
        assert isinstance(done.exception, BadInput) and text in str(done.exception), done.output
    assert Path("theirs/thesis.txt").exists()
    _export(SILU, "-o", "out", "--force")


def test_what_a_format_cannot_hold_is_said_before_anything_is_computed(monkeypatch):
    monkeypatch.setattr("refsd.goldens.making.make_into", None)
    five = next(name for name, case in CASES.items() if any(len(r.shape) == 5 for r in case.inputs.values()))
    done = _call(five, "-o", "out", "--format", "gguf")
    assert "has 5 axes, ggml reads 4; write --format safetensors" in str(done.exception)
    assert not Path("out").exists()


def test_a_full_disk_is_known_before(monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1, 1, 1000))
    assert "GB would be written, 0.0 GB are free" in str(_call(SILU, "-o", "out").exception)
    assert not Path("out").exists()


def test_the_lines_of_the_page_are_the_example_s_and_run(tmp_path):
    source = ROOT / "examples/export/silu.cpp"
    page = (ROOT / "docs/export.md").read_text().split("## Ten lines of C++")[1]
    lines = [line.removeprefix("    ") for line in page.splitlines() if line.startswith("    ")]
    function = lines[: lines.index("}") + 1]
    assert "\n".join(function) in source.read_text() and len(function) <= 10
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler")  # the files themselves are read back by the tests above
    _export(SILU, "-o", "out", "--format", "bin")
    flags = ["-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([compiler, *flags, "-o", "silu", str(source)], check=True)
    done = subprocess.run(["./silu", f"out/{SILU}", "33", "77"], capture_output=True, text=True)
    assert done.stdout == "0 of 2541 elements outside the bound\n" and done.returncode == 0
    assert refsd.judge(SILU, np.load("y.npy"))
    (Path("out") / SILU / "inputs/x.f32.bin").write_bytes(b"\0" * 4 * 2541)
    assert subprocess.run(["./silu", f"out/{SILU}", "33", "77"], capture_output=True).returncode == 1
