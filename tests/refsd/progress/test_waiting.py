"""Where stderr is no terminal, a slow answer is told about."""

import sys
import threading
from types import SimpleNamespace

import pytest

from refsd.progress.waiting import waiting


@pytest.mark.parametrize(("limit", "most"), [(600.0, " of 600"), (None, "")])
def test_a_slow_block_is_told_about_with_its_limit(capsys, monkeypatch, limit, most):
    now, two_lines, pauses = iter([100.0, 110.0, 120.4]), threading.Event(), []

    class Ended(threading.Event):
        """Not set in the first two waits, which take no time; then the block goes on."""

        def wait(self, timeout=None):
            pauses.append(timeout)
            if len(pauses) <= 2:
                return False
            two_lines.set()
            return super().wait()

    monkeypatch.setattr("refsd.progress.waiting.time", SimpleNamespace(monotonic=lambda: next(now)))
    threads = SimpleNamespace(Event=Ended, Thread=threading.Thread)
    monkeypatch.setattr("refsd.progress.waiting.threading", threads)
    with waiting("waiting for rusty, silu/1", limit, every=10.0):
        assert two_lines.wait(60)
    lines = [f"waiting for rusty, silu/1, {seconds} s{most}" for seconds in (10, 20)]
    assert capsys.readouterr().err.splitlines() == lines and pauses == [10.0] * 3


def test_a_hint_stands_behind_the_seconds_and_a_terminal_s_bar_shows_the_line(capsys, monkeypatch):
    shown, told = [], threading.Event()
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)

    def show(line, hint):
        shown.append((line, hint))
        told.set()

    with waiting("waiting for rusty, silu/1", 8.0, every=0.01, hint=lambda: "no line came", show=show):
        assert told.wait(60)
    assert shown[0] == ("waiting for rusty, silu/1, 0 s of 8", "waiting for rusty, silu/1: no line came")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False)
    printed = threading.Event()
    with waiting("waiting for rusty", every=0.01, hint=lambda: (printed.set(), "no line came")[1]):
        assert printed.wait(60)
    assert capsys.readouterr().err.startswith("waiting for rusty, 0 s: no line came\n")


def test_a_fast_block_and_a_terminal_are_left_alone(capsys, monkeypatch):
    with waiting("waiting for rusty, silu/1"):
        pass
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    no_thread = SimpleNamespace(Event=threading.Event, Thread=lambda **_: pytest.fail("a line beside the bar"))
    monkeypatch.setattr("refsd.progress.waiting.threading", no_thread)
    with waiting("waiting for rusty, silu/1"):
        pass
    assert capsys.readouterr().err == ""
