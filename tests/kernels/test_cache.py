"""The files of compiled kernels: private, and checked before they are loaded."""

import os
import stat
import subprocess
import sys

import numba
import pytest

from refsd.kernels._cache import KernelCache, private_folder

pytestmark = pytest.mark.jitted


def add_one(x):
    return x + 1


def add_two(x):
    return x + 2


def loaded(function, folder, argument=1):
    """Call it as at a new start. -> whether it came from the disk"""
    compiled = numba.njit(function)
    compiled._cache = KernelCache(function, folder)
    assert compiled(argument) == function(argument)
    return bool(compiled.stats.cache_hits)


def test_signatures_are_kept_one_by_one(tmp_path):
    assert [loaded(add_one, tmp_path, x) for x in (1, 1.5, 1, 1.5)] == [False, False, True, True]
    compiled = numba.njit(add_one)
    compiled._cache = KernelCache(add_one, tmp_path)
    compiled._cache.flush()
    assert not loaded(add_one, tmp_path)


DAMAGES = {
    "empty": lambda content: b"",
    "cut": lambda content: content[: len(content) // 2],
    "flipped": lambda content: content[:-100] + bytes(byte ^ 0x55 for byte in content[-100:]),
    "zeros": lambda content: bytes(len(content)),
    "longer": lambda content: content + b"more",
}


@pytest.mark.parametrize("suffix", ["index", "object"])
def test_damaged_files_are_compiled_again(tmp_path, suffix):
    """Numba's own cache ends in a traceback for an index, and LLVM aborts the process for an object."""
    assert not loaded(add_one, tmp_path)
    for how, damage in DAMAGES.items():
        (path,) = tmp_path.glob(f"*.{suffix}")
        path.write_bytes(damage(path.read_bytes()))
        assert not loaded(add_one, tmp_path), how
        assert loaded(add_one, tmp_path), how


def test_a_missing_object_is_compiled_again(tmp_path):
    assert not loaded(add_one, tmp_path)
    (path,) = tmp_path.glob("*.object")
    path.unlink()
    assert [loaded(add_one, tmp_path), loaded(add_one, tmp_path)] == [False, True]


def test_objects_that_were_swapped_are_not_run(tmp_path):
    """A whole file under the name of another: the index knows each by its own hash."""
    for function in (add_one, add_two):
        assert not loaded(function, tmp_path)
    one, two = (tmp_path.glob(f"*add_{name}*.object") for name in ("one", "two"))
    one, two = next(one), next(two)
    one_content, two_content = one.read_bytes(), two.read_bytes()
    one.write_bytes(two_content)
    two.write_bytes(one_content)
    assert [loaded(function, tmp_path) for function in (add_one, add_two)] == [False, False]


_COMPILES = """
import sys
from pathlib import Path
from refsd.kernels import _jit
_jit.cache_dir = lambda: Path(sys.argv[1])

@_jit.kernel
def slow(x):
    return x + 1

print("ready", flush=True)
sys.stdin.readline()
slow(1)
print(sum(slow.stats.cache_hits.values()))
"""


def test_of_several_processes_one_compiles(tmp_path):
    script = tmp_path / "slow.py"
    script.write_text(_COMPILES)
    folder = tmp_path / "cache"
    folder.mkdir(0o700)
    command = [sys.executable, "-P", script, folder]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    started = [subprocess.Popen(command, **pipes) for _ in range(3)]
    for process in started:
        assert process.stdout.readline() == "ready\n"
    for process in started:
        process.stdin.write("\n")
        process.stdin.flush()
    hits = sorted(process.communicate()[0].strip() for process in started)
    assert hits == ["0", "1", "1"]


def test_nothing_is_left_beside_the_two_files(tmp_path):
    loaded(add_one, tmp_path)
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".index", ".object"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}


def test_the_folder_is_for_its_user_alone(tmp_path):
    private_folder(tmp_path / "a" / "b" / "key")
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("a/b", "a/b/key")] == [0o700, 0o700]


@pytest.mark.parametrize(
    ("around", "own", "said"),
    [
        (0o770, 0o700, r"others may write to .*home \(mode 770\)"),
        (0o707, 0o700, r"others may write to .*home \(mode 707\)"),
        (0o1777, 0o700, None),
        (0o755, 0o755, None),
        (0o700, 0o720, r"others may write to .*key \(mode 720\)"),
        (0o700, 0o1777, r"others may write to .*key \(mode 1777\)"),
    ],
)
def test_folders_that_others_may_write_to_are_refused(tmp_path, around, own, said):
    folder = tmp_path / "home" / "key"
    folder.mkdir(parents=True)
    folder.chmod(own)
    folder.parent.chmod(around)
    if said is None:
        private_folder(folder)
    else:
        with pytest.raises(OSError, match=said):
            private_folder(folder)


@pytest.mark.parametrize(("of_home", "of_folder", "ok"), [(0, 7, True), (7, 7, True), (8, 7, False), (7, 8, False)])
def test_folders_of_other_users_are_refused(tmp_path, monkeypatch, of_home, of_folder, ok):
    folder = tmp_path / "home" / "key"
    folder.mkdir(parents=True)
    folder.parent.chmod(0o755)
    owners = {folder.parent: of_home, folder: of_folder}

    def owned(stat_of):
        def found(path, *more, **other):
            fields = list(stat_of(path, *more, **other))
            fields[4] = owners.get(path, fields[4])
            return os.stat_result(fields)

        return found

    monkeypatch.setattr(os, "geteuid", lambda: 7)
    monkeypatch.setattr(type(folder), "stat", owned(type(folder).stat))
    monkeypatch.setattr(type(folder), "lstat", owned(type(folder).lstat))
    if ok:
        private_folder(folder)
    else:
        with pytest.raises(OSError, match="belongs to user 8, whose code would run"):
            private_folder(folder)


def test_a_link_is_no_folder(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "home").mkdir(0o700)
    (tmp_path / "home" / "key").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="is no folder"):
        private_folder(tmp_path / "home" / "key")
