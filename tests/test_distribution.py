"""The recipes for packages ask for what pyproject.toml asks for, and their commands exist."""

import re
import tomllib
from pathlib import Path

import yaml
from cli_commands import calls, check

import refsd

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
RECIPE = yaml.safe_load((ROOT / "distribution" / "conda-forge" / "recipe.yaml").read_text())
# Where conda-forge has another name.
CONDA = {"msgspec": "msgspec-python"}
NOT_ON_CONDA = {"instant-clip-tokenizer"}


def test_the_conda_recipe_asks_for_the_same():
    wanted = {}
    for requirement in PROJECT["dependencies"]:
        name, version = re.match(r"([\w-]+)(>=[\d.]+)", requirement).groups()
        if name not in NOT_ON_CONDA:
            wanted[CONDA.get(name, name)] = version
    found = dict(line.split(" ", 1) for line in RECIPE["requirements"]["run"])
    assert found.pop("python") == ">=${{ python_min }}" and PROJECT["requires-python"] == ">=3.11"
    assert found == wanted


def test_the_conda_recipe_is_of_this_version():
    assert RECIPE["context"] == {"version": PROJECT["version"], "python_min": "3.11"}
    assert RECIPE["about"]["summary"] == PROJECT["description"]
    assert (ROOT / "distribution" / "conda-forge" / RECIPE["source"]["path"]).resolve() == ROOT
    (command, target) = RECIPE["build"]["python"]["entry_points"][0].split(" = ")
    assert PROJECT["scripts"][command] == target
    for line in RECIPE["tests"][1]["script"]:
        for arguments in calls(line):
            check(arguments)


def test_the_package_tells_its_version():
    assert PROJECT["version"] == refsd.__version__


def test_the_image_runs_refsd_and_copies_no_build():
    lines = (ROOT / "distribution" / "Dockerfile").read_text().splitlines()
    assert 'ENTRYPOINT ["refsd"]' in lines
    for arguments in calls(lines[0].partition("--rm")[2].partition('" ')[2]):
        check(arguments)
    ignored = set((ROOT / ".dockerignore").read_text().split())
    assert {".git", ".venv", "build", "goldens"} <= ignored
