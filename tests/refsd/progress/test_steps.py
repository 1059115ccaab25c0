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
