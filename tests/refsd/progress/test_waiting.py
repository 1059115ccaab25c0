"""Where stderr is no terminal, a slow answer is told about."""

import sys
import time

from refsd.progress.waiting import waiting


def test_a_slow_block_is_told_about_with_its_limit(capsys):
    with waiting("rusty, silu/1", 600.0, every=0.05):
        time.sleep(0.12)
    lines = capsys.readouterr().err.splitlines()
    assert 1 <= len(lines) <= 2 and lines[0] == "waiting for rusty, silu/1, 0 s of 600"
    with waiting("rusty, silu/1", every=0.05):
        time.sleep(0.07)
    assert capsys.readouterr().err == "waiting for rusty, silu/1, 0 s\n"


def test_a_fast_block_and_a_terminal_are_left_alone(capsys, monkeypatch):
    with waiting("rusty, silu/1"):
        pass
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with waiting("rusty, silu/1", every=0.02):
        time.sleep(0.05)
    assert capsys.readouterr().err == ""
