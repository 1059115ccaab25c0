"""The caches, and what a damaged one does to goldens: nothing."""

import json
import os
import shutil

import pytest
from typer.testing import CliRunner

from refsd.cli import app
from refsd.commands import caches
from refsd.files import checksums
from refsd.golden.cache_folder import cache_folder
from refsd.golden.store import Store
from refsd.numerics.errors import BadInput
from refsd.weights import recipe_files

_CASE = "clip-l/clip/ended"


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REFSD_CACHE", str(tmp_path / "cache"))
    # Nobody's compiled kernels are shown or removed here.
    kernels = caches.CACHES["kernels"]._replace(place=lambda: tmp_path / "cache" / "kernels")
    monkeypatch.setitem(caches.CACHES, "kernels", kernels)


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """The folder in which models are kept, as if these were large."""
    monkeypatch.setattr(recipe_files, "SMALL", 0)
    return tmp_path / "cache" / "models"


def _call(*arguments: str):
    result = CliRunner().invoke(app, list(arguments))
    # What a run has read is forgotten with it.
    from refsd.weights import model_files

    model_files._opened.clear()
    return result


def _ok(*arguments: str):
    result = _call(*arguments)
    assert result.exit_code == 0, result.output + repr(result.exception)
    return result


def _weights(kept):
    (path,) = kept.glob("*/model.safetensors")
    return path


def _flip(path) -> None:
    """The top bit of the last weight but ten: its sign."""
    with path.open("r+b") as file:
        file.seek(-41, os.SEEK_END)
        byte = file.read(1)[0]
        file.seek(-41, os.SEEK_END)
        file.write(bytes([byte ^ 0x80]))


@pytest.mark.jitted
def test_a_wrong_bit_in_kept_weights_reaches_no_golden(tmp_path, kept):
    made = _ok("golden", "make", "--cases", _CASE)
    assert made.stderr.count("kept for later runs") == 1
    right = Store(tmp_path / "goldens").manifest(_CASE)
    _flip(_weights(kept))
    Store(tmp_path / "goldens").manifest_path(_CASE).unlink()
    again = _ok("golden", "make", "--cases", _CASE)
    assert "it is made again" in again.stderr and "SHA-256" in again.stderr
    assert Store(tmp_path / "goldens").manifest(_CASE) == right
    _flip(_weights(kept))
    judged = _ok("conform", "refsd", "--cases", _CASE)
    assert "it is made again" in judged.stderr
    assert "made again" not in _ok("conform", "refsd", "--cases", _CASE).stderr


@pytest.mark.jitted
def test_recompute_does_not_read_the_weights_that_it_verifies(tmp_path, kept):
    _ok("golden", "make", "--cases", _CASE)
    _flip(_weights(kept))
    checksums.write(_weights(kept))  # a damage from before the SHA-256 was taken
    Store(tmp_path / "goldens").manifest_path(_CASE).unlink()
    _ok("golden", "make", "--cases", _CASE)
    again = _call("golden", "verify", "--cases", _CASE, "--recompute")
    assert again.exit_code == 1 and "drift" in again.stdout and _CASE in again.stdout
    assert sorted(path.name for path in kept.iterdir()) == [_weights(kept).parent.name]
    _ok("cache", "clear", "models")
    shutil.rmtree(tmp_path / "goldens")
    _ok("golden", "make", "--cases", _CASE)
    _ok("golden", "verify", "--cases", _CASE, "--recompute")


@pytest.mark.jitted
def test_small_models_are_not_cached(tmp_path):
    _ok("golden", "make", "--cases", _CASE)
    assert not (tmp_path / "cache").exists()


def _entry(tmp_path, name="models", entry=f"sd15-full-f16-{'0' * 16}"):
    folder = tmp_path / "cache" / name / entry
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(bytes(2_500_000))
    return folder


def test_the_caches_are_shown(tmp_path):
    _entry(tmp_path)
    shown = _ok("cache").stdout
    assert "models         2.5 MB  recipe weights of large models" in shown
    assert f"2.5 MB    sd15-full-f16-{'0' * 16}" in shown
    rows = {row["name"]: row for row in json.loads(_ok("cache", "--json").stdout)}
    assert list(rows) == list(caches.CACHES) == ["models", "goldens", "fetched", "kernels", "taps"]
    assert rows["models"]["path"] == str(tmp_path / "cache" / "models")
    assert rows["models"]["entries"] == {f"sd15-full-f16-{'0' * 16}": 2_500_000}
    assert rows["taps"]["entries"] == {}


def test_only_what_is_ours_is_cleared(tmp_path):
    """Somebody's own folder called `models` may be what REFSD_CACHE leads to."""
    entry = _entry(tmp_path)
    theirs = _entry(tmp_path, entry="sd15")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").write_bytes(b"x")
    (entry / "link").symlink_to(tmp_path / "elsewhere")
    (entry.parent / f"flux-dev-full-q4_0-{'1' * 16}").symlink_to(tmp_path / "elsewhere")
    tap = tmp_path / "cache" / "taps" / f"sdcpp-{'0' * 16}.so"
    tap.parent.mkdir()
    tap.write_bytes(b"tap")
    freed = json.loads(_ok("cache", "clear", "models", "--json").stdout)["freed"]
    assert 2_500_000 <= freed["models"] < 2_501_000
    assert [path.name for path in entry.parent.iterdir()] == [theirs.name]
    assert (tmp_path / "elsewhere" / "file").exists() and tap.exists()
    assert "taps           0.0 MB freed" in _ok("cache", "clear", "taps").stdout
    assert not tap.exists() and "0.0 MB freed" in _ok("cache", "clear", "models").stdout


def test_kernels_are_cleared(tmp_path):
    entry = _entry(tmp_path, "kernels", "0123456789abcdef")
    theirs = _entry(tmp_path, "kernels", "numba_0123456789abcdef")
    _ok("cache", "clear", "kernels")
    assert not entry.exists() and theirs.exists()


def test_what_a_running_process_makes_is_left(tmp_path):
    from refsd.golden.scratch import MAKING, Scratch

    folder = tmp_path / "cache" / "models"
    with Scratch(folder, MAKING) as making:
        _ok("cache", "clear")
        assert making.exists()
    left = folder / f"{MAKING}x"
    left.mkdir()
    (left / "half").write_bytes(bytes(1_000_000))
    assert "1.0 MB" in _ok("cache").stdout
    _ok("cache", "clear")
    assert not left.exists()


def test_bad_usage_of_cache():
    result = _call("cache", "clear", "everything")
    assert isinstance(result.exception, BadInput)
    assert "no cache 'everything'; there are models, goldens, fetched, kernels, taps" in str(result.exception)


def test_a_relative_cache_is_absolute_for_programs_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setenv("REFSD_CACHE", "here")
    assert cache_folder("models") == tmp_path / "here" / "models"
