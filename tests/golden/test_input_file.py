"""Files that a user names: read where they are files, never waited for."""

import os
import signal
import socket

import pytest

from refsd.golden.input_file import inputs_of_a_run, is_input, note_input, open_input, read_input
from refsd.numerics.errors import BadInput


def test_a_file_is_read(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"content")
    (tmp_path / "link").symlink_to(path)
    with open_input(tmp_path / "link") as file:
        assert file.read() == b"content"
    assert read_input(path, 7) == b"content"
    with pytest.raises(BadInput, match=r"a: 7 bytes, at most 6 of a poem expected"):
        read_input(path, 6, "a poem")


@pytest.fixture(autouse=True)
def _no_patience():
    """What waits for a pipe's writer would wait for ever."""

    def end(number, frame):
        raise TimeoutError("it waits")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(10)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def pipe(path):
    os.mkfifo(path)


def listener(path):
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def folder(path):
    path.mkdir()


def link_to_a_device(path):
    path.symlink_to("/dev/zero")


NOT_FILES = {"a pipe": pipe, "a socket": listener, "a folder": folder, "a device": link_to_a_device}


@pytest.mark.parametrize("what", NOT_FILES)
def test_what_is_no_file_is_refused_at_once(tmp_path, monkeypatch, what):
    monkeypatch.chdir(tmp_path)  # a socket's path is short
    NOT_FILES[what](tmp_path.__class__("it"))
    with pytest.raises(BadInput, match=rf"^it: {what}; a poem expected$"):
        open_input(tmp_path.__class__("it"), "a poem")


def test_a_pipe_that_comes_after_the_first_look_is_not_waited_for(tmp_path, monkeypatch):
    """Between the look at a path and its opening another file may come."""
    path = tmp_path / "a"
    os.mkfifo(path)
    (tmp_path / "file").write_text("")
    looked = (tmp_path / "file").stat()
    monkeypatch.setattr(type(path), "stat", lambda self, **_: looked)
    with pytest.raises(BadInput, match="a pipe; a file expected"):
        open_input(path)


@pytest.mark.parametrize(
    ("name", "said"),
    [("none", "No such file"), ("x" * 300, "File name too long"), ("a\0b", r"'.*a\\x00b': no file has a NUL")],
)
def test_names_of_no_file(tmp_path, name, said):
    with pytest.raises(BadInput, match=said) as error:
        open_input(tmp_path / name)
    assert str(error.value).isprintable()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "a git-lfs pointer, not the file"),
        (b"<!doctype html><html>", "a web page, not the file"),
    ],
)
def test_what_stands_in_a_files_place_is_named(tmp_path, content, said):
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(BadInput, match=f"a: {said}.*; a poem expected"):
        read_input(tmp_path / "a", 1000, "a poem")


def test_a_run_knows_its_inputs_by_what_they_are(tmp_path):
    for name in ("read", "noted", "other"):
        (tmp_path / name).write_text(name)
    os.link(tmp_path / "read", tmp_path / "hard")
    (tmp_path / "soft").symlink_to("read")
    with inputs_of_a_run():
        open_input(tmp_path / "read").close()
        note_input(tmp_path / "noted")
        note_input(tmp_path / "none")
        note_input(tmp_path)
        known = {path.name: is_input(path.stat()) for path in tmp_path.iterdir()}
    assert known == {"read": True, "hard": True, "soft": True, "noted": True, "other": False}
    assert not is_input((tmp_path / "read").stat())
