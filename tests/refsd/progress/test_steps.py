"""The bar of counted steps: nothing on stderr where it is no terminal."""

import pytest

from refsd.progress.steps import steps


def test_quick_work_prints_nothing(capsys):
    with pytest.raises(KeyError), steps("goldens", 2) as advance:
        advance("silu")
        raise KeyError
    assert capsys.readouterr() == ("", "")


def test_a_line_says_how_long_the_rest_takes(monkeypatch, capsys):
    clock = iter([0.0, 30.0, 60.0])
    monkeypatch.setattr("refsd.progress.steps.time.monotonic", lambda: next(clock))
    with steps("goldens", 3) as advance:
        advance("silu")
        advance("gelu")
    assert capsys.readouterr().err == "goldens: 1 of 3, silu\ngoldens: 2 of 3, about 30 s left, gelu\n"


def test_searches_are_not_in_the_estimate(monkeypatch, capsys):
    clock = iter([0.0, 20.0, 21.0, 29.0, 30.0, 80.0])  # of the 60 s after the first line 58 are searches
    monkeypatch.setattr("refsd.progress.steps.time.monotonic", lambda: next(clock))
    with steps("conform", 10) as advance:
        advance("silu/1")
        for name in ("silu/2", "silu/3"):
            advance.search()
            advance(name)
    left = "about 7 s left without searches for causes"
    assert capsys.readouterr().err == f"conform: 1 of 10, silu/1\nconform: 3 of 10, {left}, silu/3\n"


def test_a_terminal_s_bar_shows_a_text_beside_it(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr("refsd.progress.steps.PATIENCE", -1.0)
    with steps("conform", 10) as advance:
        advance.show("waiting for rusty, silu/1, 10 s")
        for seconds in (20, 30):
            advance.show(f"waiting for rusty, silu/1, {seconds} s", "no line came")
    said = capsys.readouterr().err
    assert "waiting for rusty, silu/1, 10 s" in said and said.count("no line came") == 1
