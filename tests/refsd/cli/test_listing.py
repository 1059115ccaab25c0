"""`refsd --help` lists every command by its own first paragraph, and imports none."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import refsd.cli
from refsd.cli import app
from refsd.cli.listing import SUMMARIES

COMMANDS = typer.main.get_group(app).commands


@pytest.mark.parametrize("name", SUMMARIES)
def test_a_summary_is_the_beginning_of_the_commands_own_help(name):
    assert SUMMARIES[name] == " ".join((COMMANDS[name].help or "").split("\n\n")[0].split())
    assert COMMANDS[name].name == name


def test_every_module_of_a_command_is_listed():
    """A command's module begins with its name: "refsd run-onnx: ..."."""
    pages = {path.stem.replace("_", "-"): path.read_text() for path in Path(refsd.cli.__file__).parent.glob("*.py")}
    assert {name for name, page in pages.items() if re.match(rf'"""refsd {name}\b', page)} == {*SUMMARIES}


def _commands(command, path=()):
    yield path, command
    for name, below in getattr(command, "commands", {}).items():
        yield from _commands(below, (*path, name))


@pytest.mark.parametrize("name", SUMMARIES)
def test_help_shows_every_bracket(name):
    """Rich takes [dask] and [@DEVICE] for tags of its own, and leaves them out."""
    for path, command in _commands(COMMANDS[name], (name,)):
        texts = [command.help, *(getattr(one, "help", None) for one in command.params)]
        bracketed = {match for text in texts if text for match in re.findall(r"\[[a-z#/@][^][]*\]", text)}
        shown = CliRunner().invoke(app, [*path, "--help"], terminal_width=10_000, env={"COLUMNS": "300"}).output
        assert [text for text in bracketed if text not in " ".join(shown.split())] == []


@pytest.mark.parametrize("name", SUMMARIES)
def test_help_is_wrapped_by_the_terminal(name):
    """A paragraph of prose is one line: one broken where the source is, is broken twice at 80 columns."""
    for _, command in _commands(COMMANDS[name], (name,)):
        prose = [p for p in (command.help or "").split("\n\n") if not p.startswith(" ")]
        assert [p for p in prose if "\n" in p] == []


def test_an_unknown_choice_is_refused_with_the_nearest():
    result = CliRunner().invoke(app, ["weights", "make", "sd15", "--layout", "difusers", "-o", "x"])
    assert result.exit_code == 2 and "did you mean" in result.output and '"diffusers"' in result.output


def test_an_unknown_command_is_refused_with_the_nearest():
    result = CliRunner().invoke(app, ["confrom"])
    assert result.exit_code == 2 and "conform" in result.output
    with pytest.raises(KeyError):
        COMMANDS["confrom"]


def test_the_list_imports_no_command_and_no_array_library():
    """Which is what keeps it fast: NumPy and Numba take half a second."""
    script = "import sys; from refsd.cli import main; sys.argv = ['refsd', '--help']\n"
    script += "try: main()\nexcept SystemExit: pass"
    printed = subprocess.run(
        [sys.executable, "-P", "-c", f"{script}\nprint(*sys.modules)"], capture_output=True, text=True, check=True
    ).stdout
    listed, _, modules = printed.rstrip().rpartition("\n")
    assert all(f" {name} " in listed for name in SUMMARIES)
    loaded = set(modules.split())
    assert "refsd.cli.listing" in loaded
    assert not loaded & {"numpy", "numba", "msgspec", "refsd.cli.conform", "refsd.cli.golden"}


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("fuzz", "exec:x", "--ops", "linear", "silu"), "repeat the option"),
        (("profile", "exec:x", "--ops", "linear", "silu"), "repeat the option"),
        (("conform", "exec:x", "--ops", "linear"), "--cases"),
    ],
)
def test_several_values_and_another_option_are_told(words, hint):
    result = CliRunner().invoke(app, [*words], terminal_width=10_000, env={"COLUMNS": "300"})
    assert result.exit_code == 2 and hint in " ".join(result.output.split()) and "--taps" not in result.output
