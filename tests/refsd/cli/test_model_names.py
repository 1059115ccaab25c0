"""Models and components have the same names for every command."""

import pytest
from typer.testing import CliRunner

from refsd.cli import app
from refsd.commands.tokenize import Options, _encoder
from refsd.numerics.errors import BadInput


def called(*arguments):
    done = CliRunner().invoke(app, [*map(str, arguments)])
    return done.exit_code, done.output or str(done.exception)


@pytest.mark.parametrize(
    "command",
    [
        ("info",),
        ("range",),
        ("quality", "--types", "q8_0", "--steps", "0"),
    ],
    ids=lambda command: command[0],
)
def test_a_recipe_is_a_model(command):
    code, output = called(*command, "recipe:zimage:tiny")
    assert code == 0, output


def test_a_recipe_is_a_part_of_a_model(tmp_path):
    """Refused are the parts that are missing, not the one that is there."""
    code, output = called("txt2img", "--diffusion-model", "recipe:zimage:tiny", "-p", "x", "-o", tmp_path / "x.png")
    assert code and "Z-Image does not hold qwen3" in output
    with pytest.raises(BadInput, match="expected recipe:FAMILY"):
        CliRunner().invoke(
            app,
            ["txt2img", "--vae", "recipe:a:b:c", "-p", "x", "-o", str(tmp_path / "x.png")],
            catch_exceptions=False,
        )


def _options(component, family=None):
    return Options(None, None, component, ["a cat"], family, "diffusers", None, None, False)


@pytest.mark.parametrize(
    ("component", "family", "meant"),
    [
        ("clip_l", None, "clip"),
        ("clip", None, "clip"),
        ("t5xxl", None, "t5"),
        ("llm", "zimage", "qwen3"),
        ("llm", "qwen-image", "qwen2_5_vl"),
        ("qwen3", "zimage", "qwen3"),
    ],
)
def test_a_text_encoder_has_the_names_of_forward(component, family, meant):
    assert _encoder(_options(component, family)) == meant


def test_a_text_encoder_that_could_be_several_is_asked_for():
    with pytest.raises(BadInput, match=r"--component llm is qwen2_5_vl or .*: name one of them, or a --family"):
        _encoder(_options("llm"))
    for other in ("unet", "diffusion", "clip_x"):
        with pytest.raises(BadInput, match=f"--component {other}: expected one of .*clip_l, t5xxl, llm"):
            _encoder(_options(other))
