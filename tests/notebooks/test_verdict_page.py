"""The example of docs/verdict.md gives what the page shows."""

import shlex
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from refsd.cli import app

pytestmark = pytest.mark.notebook

ROOT = Path(__file__).parents[2]


def test_the_washed_out_picture(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    program = f"exec:{sys.executable} {shlex.quote(str(ROOT / 'examples' / 'exec' / 'black_picture.py'))}"
    done = CliRunner().invoke(app, ["conform", program, "--cases", "sd15/vae-decoder/outliers"])
    assert done.exit_code == 1
    page = " ".join((ROOT / "docs" / "verdict.md").read_text(encoding="utf-8").split())
    for phrase in (
        "black-picture, 1 case: squares summed in float16",
        "decoder.mid.block_1.norm1: gain of the tile at [0, 0]: 0.000566 +- 1e-05",
        "29 of 140 taps wrong by itself, each after group_norm; the reference agrees if squares summed in float16",
    ):
        assert phrase in " ".join(done.output.split())
        assert phrase in page
