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
    with waiting("rusty, silu/1", limit, every=10.0):
        assert two_lines.wait(60)
    lines = [f"waiting for rusty, silu/1, {seconds} s{most}" for seconds in (10, 20)]
    assert capsys.readouterr().err.splitlines() == lines and pauses == [10.0] * 3


def test_a_fast_block_and_a_terminal_are_left_alone(capsys, monkeypatch):
    with waiting("rusty, silu/1"):
        pass
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    no_thread = SimpleNamespace(Event=threading.Event, Thread=lambda **_: pytest.fail("a line beside the bar"))
    monkeypatch.setattr("refsd.progress.waiting.threading", no_thread)
    with waiting("rusty, silu/1"):
        pass
    assert capsys.readouterr().err == ""
