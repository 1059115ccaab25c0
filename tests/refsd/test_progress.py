"""The status line of a first run."""

import time
from types import SimpleNamespace

import pytest
from numba.core import event

from refsd import progress


def compile_for(seconds, name="group_norm"):
    dispatcher = SimpleNamespace(py_func=SimpleNamespace(__name__=name))
    with event.trigger_event("numba:compile", data={"dispatcher": dispatcher}):
        time.sleep(seconds)


@pytest.fixture
def patience(monkeypatch):
    monkeypatch.setattr(progress, "_PATIENCE", 0.1)


def test_a_short_compilation_says_nothing(capsys, patience):
    with progress.compile_progress():
        compile_for(0.01)
    assert capsys.readouterr() == ("", "")


def test_many_short_compilations_add_up(capsys, patience):
    with progress.compile_progress():
        for _ in range(8):
            compile_for(0.03)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("compiling kernels (first run") == 1


def test_a_terminal_sees_the_kernels_name(capsys, monkeypatch, patience):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with progress.compile_progress():
        compile_for(0.4)
    assert "compiling kernels (first run): group_norm ..." in capsys.readouterr().err


def test_an_exception_passes_and_the_listener_goes(capsys, patience):
    with pytest.raises(KeyError), progress.compile_progress():
        raise KeyError("a kernel's own")
    compile_for(0.3)
    assert capsys.readouterr().err == ""
