"""What a user sees while kernels compile."""

import re
import time
from types import SimpleNamespace

import pytest
from numba.core import event

from refsd.progress import compiling


def of(name):
    return {"dispatcher": SimpleNamespace(py_func=SimpleNamespace(__name__=name))}


def compile_for(seconds, name="group_norm"):
    with event.trigger_event("numba:compile", data=of(name)):
        time.sleep(seconds)


@pytest.fixture
def patience(monkeypatch):
    monkeypatch.setattr(compiling, "_PATIENCE", 0.1)


def test_a_short_compilation_says_nothing(capsys, patience):
    with compiling.compile_progress():
        compile_for(0.01)
    assert capsys.readouterr() == ("", "")


def test_many_short_compilations_add_up(capsys, patience):
    with compiling.compile_progress():
        for _ in range(8):
            compile_for(0.03)
    out, err = capsys.readouterr()
    assert out == ""
    first, last = err.splitlines()
    assert re.fullmatch(r"compiling kernels: \d+ so far, now group_norm \.\.\.", first)
    assert re.fullmatch(r"kernels compiled: 8, in \d s", last)  # of a machine that others use too


def test_a_second_command_goes_on_from_the_count(capsys, patience, monkeypatch):
    """An operation that comes later is no first run; callees count too, and the one that called them is named."""
    monkeypatch.setattr(compiling._Compilations, "count", 0)
    with compiling.compile_progress():
        compile_for(0.2)
    with compiling.compile_progress(), event.trigger_event("numba:compile", data=of("layer_norm")):
        compile_for(0.01, "moments")
        compile_for(0.2, "scratch")
    assert re.sub(r"in \d s", "in 0 s", capsys.readouterr().err).splitlines() == [
        "compiling kernels: 0 so far, now group_norm ...",
        "kernels compiled: 1, in 0 s",
        "compiling kernels: 2 so far, now layer_norm ...",
        "kernels compiled: 3, in 0 s",
    ]


def test_a_terminal_sees_the_kernels_name(capsys, monkeypatch, patience):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with compiling.compile_progress():
        compile_for(0.4)
    assert "so far, now group_norm ..." in capsys.readouterr().err


def test_an_exception_passes_and_the_listener_goes(capsys, patience):
    with pytest.raises(KeyError), compiling.compile_progress():
        raise KeyError("a kernel's own")
    compile_for(0.3)
    assert capsys.readouterr().err == ""
