"""Files that are written: whole or not at all, and never in place of what must stay."""

import contextlib
import os
import resource
import signal
import stat
import subprocess
import sys

import pytest

from refsd.golden.input_file import inputs_of_a_run, open_input
from refsd.golden.output_file import Outputs, whole_file, whole_folder, write_file
from refsd.golden.scratch import locked
from refsd.numerics.errors import BadInput


def test_a_file_is_written(tmp_path):
    path = tmp_path / "new" / "folder" / "a"
    write_file(path, b"content")
    assert path.read_bytes() == b"content"
    assert [p.name for p in path.parent.iterdir()] == ["a"]
    mask = os.umask(0o022)
    os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask


def test_a_file_that_is_replaced_passes_its_permissions_on(tmp_path):
    path = tmp_path / "a"
    path.write_text("old")
    path.chmod(0o640)
    write_file(path, b"new")
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_what_fails_halfway_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a"
    path.write_text("old")
    with pytest.raises(KeyError), whole_file(path) as part:
        part.write_text("half")
        raise KeyError
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_and_its_file_is_replaced(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there/file")
    for content in (b"first", b"second"):  # it dangles at first
        write_file(tmp_path / "link", content)
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "there" / "file").read_bytes() == content
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link", "there"]


def test_a_long_name_has_room(tmp_path):
    write_file(tmp_path / ("x" * 255), b"")
    with pytest.raises(BadInput, match="File name too long"):
        write_file(tmp_path / ("x" * 256), b"")


def refused(path, said, write=lambda path: write_file(path, b"new")):
    with pytest.raises(BadInput, match=said) as error:
        write(path)
    assert str(error.value).isprintable()


@pytest.mark.parametrize("name", ["pipe", "folder", "device", "loop", "nul\0"])
def test_what_is_no_file_is_left_alone(tmp_path, name):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "device").symlink_to("/dev/null")
    (tmp_path / "loop").symlink_to("loop")
    before = os.stat("/dev/null")
    said = {
        "pipe": "a pipe; refsd writes whole files only",
        "folder": "a folder; refsd writes whole files only",
        "device": "a device; refsd writes whole files only",
        "loop": "Too many levels of symbolic links",
        "nul\0": "no file has a NUL in its name",
    }[name]
    refused(tmp_path / name, said)
    refused(tmp_path / name, said, lambda path: Outputs().add("--out", path))
    assert (tmp_path / "pipe").is_fifo() and os.stat("/dev/null").st_rdev == before.st_rdev


@pytest.mark.parametrize("name", ["input", "hard", "soft", "folder/../input"])
def test_an_input_of_the_run_is_left_alone(tmp_path, name):
    (tmp_path / "input").write_text("precious")
    (tmp_path / "folder").mkdir()
    os.link(tmp_path / "input", tmp_path / "hard")
    (tmp_path / "soft").symlink_to("input")
    with inputs_of_a_run():
        open_input(tmp_path / "input").close()
        refused(tmp_path / name, "an input of this very run")
        refused(tmp_path / name, "an input of this very run", lambda path: Outputs().add("--out", path))
    assert (tmp_path / "input").read_text() == "precious"
    write_file(tmp_path / name, b"new")  # another run


def test_two_outputs_are_two_files(tmp_path):
    (tmp_path / "soft").symlink_to("a")
    outputs = Outputs()
    outputs.add("--out", tmp_path / "a")
    outputs.add("--json", tmp_path / "b")
    for path in (tmp_path / "a", tmp_path / "soft", tmp_path / "x" / ".." / "a"):
        with pytest.raises(BadInput, match="--out and --taps name the same file"):
            outputs.add("--taps", path)


def test_a_standard_stream_is_no_output(tmp_path):
    script = "import sys, pathlib; from refsd.golden.output_file import write_file\n"
    script += "write_file(pathlib.Path(sys.argv[1]), b'new')"
    with open(tmp_path / "log", "w") as log:
        done = subprocess.run(
            [sys.executable, "-P", "-c", script, "/dev/stdout"], stdout=log, stderr=subprocess.PIPE, text=True
        )
    assert "BadInput: /dev/stdout: where this command's own output goes" in done.stderr
    assert (tmp_path / "log").read_text() == ""


def test_a_place_that_cannot_be_written_to(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("old")
    refused(tmp_path / "file" / "a", "its folder cannot be made: File exists")
    refused(tmp_path / "file" / "a", "its folder cannot be made", lambda path: Outputs().add("--out", path))
    # Root may write anywhere, so the system's answer is given for it.
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != str(tmp_path / "file"))
    refused(tmp_path / "file", "it is write-protected")
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != str(tmp_path))
    refused(tmp_path / "new", "its folder is write-protected")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


@contextlib.contextmanager
def small_disk():
    """Files of 1000 bytes at most; for one statement only, because the limit holds for pytest's own output too."""
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1][1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before[1])
        signal.signal(signal.SIGXFSZ, before[0])


def test_a_full_disk(tmp_path):
    (tmp_path / "a").write_text("old")
    with small_disk():
        refused(
            tmp_path / "a", "a: cannot write the file: File too large", lambda path: write_file(path, bytes(2000))
        )
    assert (tmp_path / "a").read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_what_cannot_be_flushed_is_not_renamed(tmp_path, monkeypatch):
    def broken(handle):
        raise OSError(5, "Input/output error")

    (tmp_path / "a").write_text("old")
    monkeypatch.setattr(os, "fsync", broken)
    refused(tmp_path / "a", "a: cannot write the file: Input/output error")
    assert (tmp_path / "a").read_text() == "old"


def test_a_folder_appears_whole(tmp_path):
    path = tmp_path / "model"
    with pytest.raises(KeyError), whole_folder(path) as folder:
        write_file(folder / "unet" / "a", b"a")
        raise KeyError
    assert list(tmp_path.iterdir()) == []
    path.mkdir()  # an empty one is taken
    with whole_folder(path) as folder:
        write_file(folder / "unet" / "a", b"a")
        assert list(path.iterdir()) == []
    assert [p.relative_to(path).as_posix() for p in sorted(path.rglob("*"))] == ["unet", "unet/a"]
    with pytest.raises(BadInput, match="model: exists; remove it"), whole_folder(path):
        pass
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="file: exists; remove it"), whole_folder(tmp_path / "file"):
        pass


def test_nobody_else_can_reach_what_is_half_written(tmp_path):
    with whole_file(tmp_path / "a") as part:
        part.write_text("half")
        assert part.parent.parent == tmp_path
        assert stat.S_IMODE(part.parent.stat().st_mode) == 0o700


def test_what_killed_runs_left_is_swept_when_nobody_holds_it(tmp_path):
    for name in (".refsd-part-dead/sub", ".refsd-part-held", "precious", "not-ours.part", ".refsd-other"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / ".refsd-part-link").symlink_to("precious")
    with locked(tmp_path / ".refsd-part-held"):
        write_file(tmp_path / "a", b"")
        left = {path.name for path in tmp_path.iterdir()}
        assert left == {"a", ".refsd-part-held", "precious", "not-ours.part", ".refsd-other"}
    write_file(tmp_path / "a", b"")
    assert not (tmp_path / ".refsd-part-held").exists()


def test_a_run_in_progress_holds_its_folder(tmp_path):
    with whole_file(tmp_path / "a") as part:
        part.write_text("half")
        script = "import sys, pathlib; from refsd.golden.output_file import write_file\n"
        script += "write_file(pathlib.Path(sys.argv[1]), b'')"
        subprocess.run([sys.executable, "-P", "-c", script, tmp_path / "b"], check=True)
        assert part.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_a_killed_run_leaves_no_name_and_is_swept(tmp_path):
    script = """
import os, pathlib, signal, sys
from refsd.golden.output_file import whole_folder
with whole_folder(pathlib.Path(sys.argv[1])) as folder:
    (folder / "a").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-P", "-c", script, tmp_path / "model"], check=False)
    (found,) = tmp_path.iterdir()
    assert found.name.startswith(".refsd-part-")
    write_file(tmp_path / "b", b"")
    assert [p.name for p in tmp_path.iterdir()] == ["b"]
