import pytest
from typer.testing import CliRunner

from refsd.cli import app
from refsd.golden.case import ModelRecipe
from refsd.golden.recipe import SCALE_FIELDS
from refsd.numerics.errors import BadInput
from refsd.weights import recipes


def run(*args):
    return CliRunner().invoke(app, ["weights", "make", *map(str, args)])


def test_the_options_reach_the_recipe(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(recipes, "make", lambda *args: calls.append(args[:3]))
    assert run("sd15", "-o", tmp_path / "a.gguf", "--type", "q8_0", "--tiny").exit_code == 0
    assert run("sd15", "-o", tmp_path / "a", "--layout", "diffusers").exit_code == 0
    assert calls == [
        (ModelRecipe("sd15", "q8_0", True), tmp_path / "a.gguf", "ldm"),
        (ModelRecipe("sd15", "f16", False), tmp_path / "a", "diffusers"),
    ]


def test_the_help_and_the_refusal_name_the_types():
    """Of block types the help gives two; what is unknown lists all."""
    help = run("--help").output
    assert all(type in help for type in (*recipes.FLOAT_TYPES, *recipes.COMFY_TYPES))
    assert set(recipes.TYPES) <= {"f32", "f16", "bf16", *SCALE_FIELDS}
    refused = run("sd15", "-o", "a.safetensors", "--type", "comfyfp8").exception
    assert isinstance(refused, BadInput) and 'did you mean "comfy-fp8"?' in str(refused)
    assert all(f" {type}" in str(refused) for type in (*recipes.TYPES, *recipes.COMFY_TYPES))


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("sd9", "-o", "a.safetensors"), "family 'sd9'"),
        (("sd15", "-o", "a.safetensors", "--type", "q8_0"), "GGUF only"),
        (("sd15", "-o", "a.npz"), "a.npz: recipe weights are written to .safetensors or .gguf"),
    ],
)
def test_bad_usage(args, says):
    result = run(*args)
    assert isinstance(result.exception, BadInput) and says in str(result.exception)
