"""Scratch folders: gone with their owner, swept after a killed one, left alone while it lives."""

import os
import subprocess
import sys

import pytest

from refsd.golden.scratch import Scratch, abandoned, lock, locked, sweep
from refsd.golden.store import Store

pytest.importorskip("fcntl")

_HOLDS = """
import sys, time
from pathlib import Path
from refsd.golden.scratch import Scratch
scratch = Scratch(Path(sys.argv[1]), "part-")
(scratch.path / "half").write_bytes(b"x")
print(scratch.path, flush=True)
time.sleep(60)
"""


def _another(parent):
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", _HOLDS, str(parent)], stdout=subprocess.PIPE, text=True, cwd=parent
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def test_it_goes_with_its_owner(tmp_path):
    with Scratch(tmp_path / "a" / "b") as folder:
        (folder / "file").write_bytes(b"x")
        assert folder.stat().st_mode & 0o777 == 0o700
    scratch = Scratch(tmp_path / "a" / "b")
    del scratch
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_what_a_killed_process_left_is_swept_and_what_a_living_one_has_is_not(tmp_path):
    (tmp_path / "other").mkdir()
    process, path = _another(tmp_path)
    try:
        sweep(tmp_path, "part-")
        assert os.listdir(path) == ["half"] and list(abandoned(tmp_path, "part-")) == []
    finally:
        process.kill()
        process.communicate()
    assert [str(found) for found in abandoned(tmp_path, "part-")] == [path]
    with Scratch(tmp_path, "part-") as own:
        sweep(tmp_path, "part-")
        assert sorted(os.listdir(tmp_path)) == sorted(["other", own.name])


def test_links_are_not_followed(tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_bytes(b"x")
    parent = tmp_path / "scratch"
    parent.mkdir()
    (parent / "part-link").symlink_to(tmp_path / "precious")
    (parent / "part-file").write_bytes(b"x")
    sweep(parent, "part-")
    assert list(parent.iterdir()) == []
    assert (tmp_path / "precious" / "file").exists()


def test_a_lock_waits_for_its_holder(tmp_path):
    process, path = _another(tmp_path)
    with pytest.raises(BlockingIOError):
        lock(tmp_path / path, wait=False)
    process.kill()
    process.communicate()
    with locked(tmp_path / path):
        pass


def test_a_store_that_is_being_written_has_no_problem(tmp_path):
    """`refsd golden verify` beside a running `make`: its half-written files are nobody's leftovers."""
    (tmp_path / "tmp").mkdir()
    process, path = _another(tmp_path / "tmp")
    assert list(Store(tmp_path).verify({})) == []
    process.kill()
    process.communicate()
    (problem,) = Store(tmp_path).verify({})
    assert problem.kind == "extra" and path in problem.what
    Store(tmp_path).sweep()
    assert list(Store(tmp_path).verify({})) == []
