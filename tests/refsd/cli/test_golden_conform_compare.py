"""The oracle's commands, as a user calls them."""

import json

import msgspec
import numpy as np
import pytest
from safetensors.numpy import save_file
from typer.testing import CliRunner

from refsd.cli import app
from refsd.golden.cases import CASES
from refsd.golden.errors import BadInput
from refsd.golden.report import decode
from refsd.golden.store import Store

_CASE = "silu/f32/wide-x2x320"


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def _call(*arguments: str):
    return CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=True)


def _ok(*arguments: str) -> str:
    result = _call(*arguments)
    assert result.exit_code == 0, result.output + repr(result.exception)
    return result.stdout


def _bad(*arguments: str) -> str:
    result = _call(*arguments)
    assert isinstance(result.exception, BadInput)
    assert "\n" not in str(result.exception)
    return str(result.exception)


def test_make_list_show_verify(tmp_path):
    assert "2 of them new" in _ok("golden", "make", "--cases", "silu/*")
    assert "0 of them new" in _ok("golden", "make", "--cases", "silu/*")
    assert "2 cases, 2 of them in goldens" in _ok("golden", "list", "--cases", "silu/*")
    assert "sha256" in _ok("golden", "show", _CASE)
    assert "num_groups = 32" in _ok("golden", "show", "group_norm")
    assert "| silu | gelu | 2 | 2 |" in _ok("golden", "show", "silu", "--mutants")
    assert "2 of 2 goldens whole, 0 problems" in _ok("golden", "verify", "--cases", "silu/*", "--recompute")
    blob = next((tmp_path / "goldens" / "blobs").iterdir())
    blob.write_bytes(blob.read_bytes()[:-1])
    broken = _call("golden", "verify", "--cases", "silu/*")
    assert broken.exit_code == 1
    assert "corrupt" in broken.stdout
    assert "1 of them new" in _ok("golden", "make", "--cases", "silu/*")


def test_json_for_machines():
    assert json.loads(_ok("golden", "make", "--cases", "silu/*", "--json"))["new"] == 2
    assert json.loads(_ok("golden", "list", "--cases", "silu/*", "--json"))[0]["made"]
    assert json.loads(_ok("golden", "show", _CASE, "--json"))["manifest"]["numerics"] == "float64"
    assert json.loads(_ok("golden", "show", "attention", "--json"))["inputs"]["mask?"]
    assert json.loads(_ok("golden", "verify", "--cases", "silu/*", "--json"))["problems"] == []


def test_bad_usage_of_golden(tmp_path):
    assert "no such store" in _bad("golden", "verify", "none")
    assert "no case matches" in _bad("golden", "make", "--cases", "none")
    assert "no case and no operation" in _bad("golden", "show", "none")
    (tmp_path / "file").write_text("x")
    assert "not a folder" in _bad("golden", "make", "file")


def test_conform_judges_and_writes_its_reports(tmp_path):
    said = _ok("conform", "refsd", "gguf-py", "--cases", "*ant*/q4_0/*", "--json", "a.json", "--junit", "a.xml")
    assert "conforms" in said
    report = decode((tmp_path / "a.json").read_bytes())
    assert report.engines.keys() == {"refsd-float32", "gguf-py"}
    assert {r.status for r in report.results} == {"pass"}
    assert {p.name for p in (tmp_path / "refsd-report").iterdir()} == {"report.md", "conform.json", "junit.xml"}
    assert (tmp_path / "a.xml").read_bytes() == (tmp_path / "refsd-report" / "junit.xml").read_bytes()


def test_an_engine_that_runs_nothing_does_not_conform():
    result = _call("conform", "gguf-py", "--cases", "silu/*")
    assert result.exit_code == 1
    assert "gguf-py ran 0 cases" in result.stdout
    assert _call("conform", "refsd", "--cases", "silu/*", "--min-cases", "3").exit_code == 1


def test_bad_usage_of_conform(tmp_path):
    assert "unknown engine" in _bad("conform", "tensorflow", "--cases", "silu/*")
    assert "no such profile" in _bad("conform", "refsd:f8", "--cases", "silu/*")
    assert "no case matches" in _bad("conform", "refsd", "--cases", "none")
    assert "was not found" in _bad("conform", "ggml:/nowhere/libggml.so", "--cases", "silu/*")
    (tmp_path / "w.toml").write_text("nonsense")
    assert "waivers" in _bad("conform", "refsd", "--cases", "silu/*", "--waivers", "w.toml")


def _answer() -> np.ndarray:
    _ok("golden", "make", "--cases", _CASE)
    return Store("goldens").get(_CASE).outputs["y"]


@pytest.mark.parametrize("kind", ["npy", "npz", "safetensors", "folder"])
def test_compare_a_dump_with_a_case(tmp_path, kind):
    y = _answer().astype(np.float32)
    path = tmp_path / f"y.{kind}"
    if kind == "npz":
        np.savez(path, y=y)
    elif kind == "safetensors":
        save_file({"y": y}, path)
    elif kind == "folder":
        path.mkdir()
        np.save(path / "whatever.npy", y)
    else:
        np.save(path, y)
    assert "pass" in _ok("compare", path, _CASE)
    half = _call("compare", path, _CASE, "--numerics", "torch-f16")
    assert half.exit_code == 0


def test_compare_says_where_it_is_wrong(tmp_path):
    y = _answer().astype(np.float32)
    y[1, 7] += 1
    np.save(tmp_path / "y.npy", y)
    result = _call("compare", "y.npy", _CASE)
    assert result.exit_code == 1
    assert "[1, 7]" in result.stdout
    result = _call("compare", "y.npy", _CASE, "--json")
    assert result.exit_code == 1
    assert msgspec.json.decode(result.stdout)["verdict"]["passed"] is False


def test_compare_with_a_file(tmp_path):
    y = np.random.default_rng(0).standard_normal((2, 4, 8, 8))
    save_file({"out": y}, tmp_path / "golden.safetensors")
    np.save(tmp_path / "y.npy", y.astype(np.float32))
    _ok("compare", "y.npy", "golden.safetensors")
    np.save(tmp_path / "y.npy", y.astype(np.float16))
    assert _call("compare", "y.npy", "golden.safetensors").exit_code == 1
    _ok("compare", "y.npy", "golden.safetensors", "--numerics", "torch-f16")


def test_bad_usage_of_compare(tmp_path):
    np.save(tmp_path / "y.npy", np.zeros(3))
    assert "neither a case" in _bad("compare", "y.npy", "nothing")
    assert "no such file" in _bad("compare", "none.npy", _CASE)
    assert "numerics profile" in _bad("compare", "y.npy", _CASE, "--numerics", "f8")
    (tmp_path / "y.npy").write_bytes(b"\x93NUMPY")
    assert "not an npy file" in _bad("compare", "y.npy", _CASE)


def test_the_corpus_is_large_enough():
    assert len([name for name in CASES if not name.startswith("full/")]) >= 60
