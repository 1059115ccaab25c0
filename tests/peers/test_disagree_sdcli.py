"""A whole picture of sd-cli itself, stage by stage beside the reference: full-size weights."""

import json
import os

import pytest
from typer.testing import CliRunner

from refsd.cli import app
from refsd.golden.case import ModelRecipe
from refsd.weights.model_files import model_files

pytestmark = [pytest.mark.peer, pytest.mark.slow]

SETTINGS = ["-p", "a (lovely:1.3) cat", "-W", "64", "-H", "64", "--steps", "2"]


def test_sd_cli_draws_as_its_convention_says():
    model = model_files(ModelRecipe("sd15", "f16"), "ldm")
    program = f"sdcpp:{os.environ['REFSD_SD_CLI']}"
    done = CliRunner().invoke(app, ["disagree", "sdcpp:float32", program, "-m", str(model), *SETTINGS, "--json"])
    outcome = json.loads(done.stdout)
    assert done.exit_code == 0, outcome["reasons"]
    margins = {stage["name"]: stage["margins"][program] for stage in outcome["stages"] if stage["margins"]}
    assert {"cond", "calls.0.x", "calls.1.uncond", "latent", "image"} <= margins.keys()
    assert max(margins.values()) < 0.5
