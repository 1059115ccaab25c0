"""Files of recipe weights: small ones go, kept ones are checked, and damage is never computed with."""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from refsd.files import checksums
from refsd.golden.case import ModelRecipe
from refsd.numerics.errors import BadInput
from refsd.weights import recipe_files, recipes
from refsd.weights.recipe_files import RecipeFiles

TINY = ModelRecipe("clip-l", "f16", tiny=True)
OTHER = ModelRecipe("t5xxl", "f16", tiny=True)

pytestmark = pytest.mark.jitted


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """Where models of one run are made."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(recipe_files.tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """Where models are kept, as if these were large."""
    monkeypatch.setattr(recipe_files, "SMALL", 0)
    return tmp_path / "models"


def _bytes(path: Path) -> dict[str, bytes]:
    files = path.rglob("*") if path.is_dir() else [path]
    return {file.name: file.read_bytes() for file in files if file.is_file()}


def _right(tmp_path, layout="ldm") -> dict[str, bytes]:
    name = "diffusers" if layout == "diffusers" else "model.safetensors"
    return _bytes(recipes.make(TINY, tmp_path / "right" / name, layout))


def _everything(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if not path.is_dir()]


def test_a_small_model_lies_in_no_cache_and_goes_with_the_run(tmp_path, temporary):
    files = RecipeFiles(tmp_path / "models")
    path = files(TINY, "ldm")
    assert path.is_relative_to(temporary) and _bytes(path) == _right(tmp_path)
    assert files(TINY, "ldm") == path
    assert files(TINY, "diffusers").is_dir()
    assert not (tmp_path / "models").exists()
    del files
    assert _everything(temporary) == []


def test_few_small_models_are_there_at_once(tmp_path, temporary, monkeypatch):
    files = RecipeFiles(tmp_path / "models")
    first, second = files(TINY, "ldm"), files(OTHER, "ldm")
    monkeypatch.setattr(recipe_files, "_BETWEEN", first.stat().st_size + second.stat().st_size)
    files.trim()
    assert first.exists() and second.exists()
    monkeypatch.setattr(recipe_files, "_BETWEEN", first.stat().st_size + second.stat().st_size - 1)
    files(TINY, "ldm")
    files.trim()
    assert first.exists() and not second.exists(), "the one that was asked for last stays"
    monkeypatch.setattr(recipe_files, "_BETWEEN", 0)
    files.trim()
    assert first.exists()
    assert files(OTHER, "ldm") == second and second.exists()


@pytest.mark.parametrize("layout", ["ldm", "diffusers"])
def test_a_small_model_that_an_engine_wrote_to_is_made_again(tmp_path, temporary, layout):
    notes: list[str] = []
    files = RecipeFiles(tmp_path / "models", notes.append)
    path = files(TINY, layout)
    victim = max(_everything(path) or [path], key=lambda file: file.stat().st_size)
    _flip(victim)
    assert _bytes(files(TINY, layout)) == _right(tmp_path, layout)
    assert len(notes) == 1 and "made again" in notes[0]


def _flip(path: Path, bit: int = 1) -> None:
    with path.open("r+b") as file:
        file.seek(-5, os.SEEK_END)
        byte = file.read(1)[0]
        file.seek(-5, os.SEEK_END)
        file.write(bytes([byte ^ bit]))


def _truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _link(path: Path) -> None:
    """To a file of the very same bytes: who can change that one can change what is computed."""
    elsewhere = path.with_name("elsewhere")
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _folder(path: Path) -> None:
    path.unlink()
    (path / "x").mkdir(parents=True)


DAMAGE = [_flip, _truncate, _link, _fifo, _empty, _folder]


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("of", ["weights", "list"])
def test_a_damaged_kept_model_is_made_again(tmp_path, kept, damage, of):
    path = RecipeFiles(kept)(TINY, "ldm")
    right = _right(tmp_path)
    damage(path if of == "weights" else checksums.beside(path))
    notes: list[str] = []
    again = RecipeFiles(kept, notes.append)
    assert again(TINY, "ldm") == path and _bytes(path) == right
    assert len(notes) == 1 and str(path) in notes[0] and "made again" in notes[0] and "\n" not in notes[0]
    assert not path.is_symlink() and checksums.damage(path) == ""
    assert RecipeFiles(kept, notes.append)(TINY, "ldm") == path and len(notes) == 1


@pytest.mark.parametrize("damage", [_flip, _truncate, _link, Path.unlink])
def test_a_damaged_kept_folder_is_made_again(tmp_path, kept, damage):
    path = RecipeFiles(kept)(TINY, "diffusers")
    right = _right(tmp_path, "diffusers")
    damage(max(_everything(path), key=lambda file: file.stat().st_size))
    assert _bytes(RecipeFiles(kept)(TINY, "diffusers")) == right
    (path / "pytorch_model.bin").write_bytes(b"read me first")
    assert _bytes(RecipeFiles(kept)(TINY, "diffusers")) == right


def test_it_is_checked_once_and_again_when_it_changes(tmp_path, kept, monkeypatch):
    looked = []
    real = checksums.damage
    monkeypatch.setattr(checksums, "damage", lambda path: looked.append(path) or real(path))
    RecipeFiles(kept)(TINY, "ldm")
    looked.clear()
    files = RecipeFiles(kept)
    path = files(TINY, "ldm")
    assert files(TINY, "ldm") == path and looked == [path]
    before = path.stat()
    _flip(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # its ctime still tells
    assert _bytes(files(TINY, "ldm")) == _right(tmp_path)


def test_the_list_is_sha256sums(kept):
    path = RecipeFiles(kept)(TINY, "ldm")
    (line,) = checksums.beside(path).read_text().splitlines()
    assert line == f"{hashlib.sha256(path.read_bytes()).hexdigest()}  model.safetensors"
    if shutil.which("sha256sum"):
        folder = RecipeFiles(kept)(TINY, "diffusers").parent
        for name in ("model.safetensors.sha256", "diffusers.sha256"):
            subprocess.run(["sha256sum", "-c", name], cwd=folder, check=True, capture_output=True)


def test_bytes_are_on_the_disk_before_they_have_their_name(kept, monkeypatch):
    events = []
    fsync, replace = os.fsync, os.replace

    def flushed(handle):
        events.append(("fsync", os.fstat(handle).st_ino))
        fsync(handle)

    def renamed(old, new):
        events.append(("name", os.stat(old).st_ino))
        replace(old, new)

    monkeypatch.setattr(checksums.os, "fsync", flushed)
    monkeypatch.setattr(os, "replace", renamed)
    path = RecipeFiles(kept)(TINY, "ldm")
    for file in (path, checksums.beside(path)):
        inode = file.stat().st_ino
        assert events.index(("fsync", inode)) < len(events) - 1 - events[::-1].index(("name", inode))
    assert events[-1] == ("fsync", path.parent.stat().st_ino)


def test_fresh_weights_share_nothing_with_the_kept(tmp_path, kept):
    path = RecipeFiles(kept)(TINY, "ldm")
    _flip(path)
    checksums.write(path)  # a damage that the list knows of
    files = RecipeFiles(kept, fresh=True)
    fresh = files(TINY, "ldm")
    assert fresh != path and _bytes(fresh) == _right(tmp_path) != _bytes(path)
    del files
    assert not fresh.exists()


def test_where_nothing_can_be_kept_is_one_line(tmp_path, kept):
    kept.write_text("in the way")
    with pytest.raises(BadInput, match="cannot keep recipe weights") as caught:
        RecipeFiles(kept)(TINY, "ldm")
    assert "\n" not in str(caught.value)


_MAKES = """
import os, signal, sys
from pathlib import Path
from refsd.golden.case import ModelRecipe
from refsd.weights import recipe_files, recipes
recipe_files.SMALL = 0
model = ModelRecipe("sd15", "f16", tiny=True)
share, make, written = float(sys.argv[2]), recipes.make, 0

def count(size):
    global written
    written += size
    if written > share * recipes.size(model):
        os.kill(os.getpid(), signal.SIGKILL)

recipes.make = lambda model, path, layout: make(model, path, layout, count)
notes = []
print(recipe_files.RecipeFiles(Path(sys.argv[1]), notes.append)(model, "ldm"))
print(*notes, sep="\\n", flush=True)
"""
SD15 = ModelRecipe("sd15", "f16", tiny=True)
_ALL = 2  # no model has two times its own bytes


def _maker(kept, killed_at: float = _ALL):
    """Make SD15 in another process, which kills itself when it has written this share of the bytes."""
    command = [sys.executable, "-P", "-c", _MAKES, str(kept), str(killed_at)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs kill -9")
def test_killed_while_it_is_made(kept):
    for share in (0.2, 0.8):
        run = _maker(kept, share)
        assert run.communicate()[0] == "" and run.returncode == -signal.SIGKILL
        assert list(kept.glob("sd15*/*")) == [], "nothing stands under a final name"
        assert _everything(kept), "it was not killed in the middle"
    path = RecipeFiles(kept)(SD15, "ldm")
    assert checksums.damage(path) == ""
    assert sorted(_everything(kept)) == [path, checksums.beside(path)], "what was half made is swept"


def test_two_processes_make_one_file(kept):
    runs = [_maker(kept), _maker(kept)]
    said = [run.communicate()[0].splitlines() for run in runs]
    assert [run.returncode for run in runs] == [0, 0]
    assert said[0][0] == said[1][0]
    path = Path(said[0][0])
    assert checksums.damage(path) == "" and sorted(_everything(kept)) == [path, checksums.beside(path)]
    assert sum(line.startswith("making") for lines in said for line in lines) == 1, "the second waits for the first"
