"""The table of txt2img's options: the command, the settings' defaults and the checks of ranges follow it."""

import inspect

import pytest

from refsd.cli.disagree import disagree
from refsd.cli.parts import PARTS
from refsd.cli.txt2img import txt2img
from refsd.conventions import DEFAULT
from refsd.numerics.errors import BadInput
from refsd.pipelines.guidance_rule import GuidanceRule, read_layers
from refsd.pipelines.hires import HiresSettings
from refsd.pipelines.options import OPTIONS, check_between, default, fields
from refsd.pipelines.preview import PreviewSettings
from refsd.pipelines.settings import Settings

CLASSES = {kind.__name__: kind for kind in (Settings, GuidanceRule, HiresSettings, PreviewSettings)}
BETWEEN = [option for option in OPTIONS if option.between]


def test_the_command_takes_every_option_once():
    names = [*inspect.signature(txt2img).parameters]
    assert sorted(names) == sorted([*(option.name for option in OPTIONS), *PARTS])
    assert {"a", "b", "prompt", "init_img", "vae"} <= inspect.signature(disagree).parameters.keys()


@pytest.mark.parametrize("option", [option for option in OPTIONS if option.field], ids=lambda option: option.name)
def test_a_field_has_its_options_default(option):
    kind, _, field = option.field.partition(".")
    if option.name != "prompt":
        assert CLASSES[kind]._field_defaults[field] == option.default == default(option.field)
    assert fields(kind, {option.name: 7}) == {field: 7}


@pytest.mark.parametrize("option", BETWEEN, ids=lambda option: option.name)
def test_a_value_out_of_its_range_is_refused_with_its_flag(option):
    kind, _, field = option.field.partition(".")
    settings = Settings("") if kind == "Settings" else CLASSES[kind]()
    check_between(settings)
    for wrong in (option.between[0] - 2, option.between[1] + 1, float("nan")):
        with pytest.raises(BadInput, match=rf"^{option.flag} .*: expected "):
            check_between(settings._replace(**{field: wrong}))


def test_defaults_that_are_read_are_those_of_the_settings():
    given = {option.name: option.default for option in OPTIONS}
    assert given["like"] == DEFAULT.name
    assert read_layers(given["skip_layers"]) == GuidanceRule().skip_layers
