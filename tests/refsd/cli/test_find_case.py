"""A name that is no case's is answered by one that is like it; what a case takes is shown as numbers."""

import pytest
from typer.testing import CliRunner

from refsd.cases import meant
from refsd.cli import app
from refsd.numerics.errors import BadInput


@pytest.mark.parametrize(
    ("name", "like"),
    [("z-image", "*zimage*"), ("qwen-image", "qwen-image/*"), ("SD3.5", "*sd35-large*"), ("lineer", "linear/*")],
)
def test_a_name_finds_its_cases(name, like):
    assert meant(name) == f' (did you mean "{like}"?)'
    done = CliRunner().invoke(app, ["golden", "show", name])
    assert isinstance(done.exception, BadInput) and like in str(done.exception)


@pytest.mark.parametrize("name", ["trajectory/flow", "sd15"])
def test_the_beginning_of_names_is_listed_not_shown(name):
    done = CliRunner().invoke(app, ["golden", "show", name])
    assert str(done.exception).endswith(f"list them by `refsd golden list --cases '{name}/*'`")


def test_a_constant_is_shown_as_its_number():
    done = CliRunner().invoke(app, ["golden", "show", "stage/adapter/lora-kohya"])
    assert "alpha f32 []  constant 1\n" in done.output and "bell, 2**-18" in done.output
