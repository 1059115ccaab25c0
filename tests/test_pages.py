"""What the pages say can be done: commands exist, the cheap ones run, pictures are of real runs."""

import fnmatch
import json
import re
import runpy
import shlex
from pathlib import Path

import pytest
from cli_commands import calls, check, code_lines
from typer.testing import CliRunner

import refsd
from refsd.cases import CASES
from refsd.cli import app
from refsd.families.flux import shift_by_tokens
from refsd.numerics.profiles import PROFILES
from refsd.samplers.levels import FlowLevels, shift_exponential, shift_snr
from refsd.samplers.schedules.flow import flux_mu

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *(ROOT / folder / "README.md" for folder in ("kernels", "golden", "notebooks")),
    ROOT / "refsd" / "engines" / "exec" / "protocol.md",
]
COMMANDS = ROOT / "docs" / "commands.md"
OPS = {case.op for case in CASES.values() if "/" not in case.op}


def commands(page: Path) -> list[list[str]]:
    return [arguments for line in code_lines(page) if "refsd " in line for arguments in calls(line)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_exists_with_its_options(page):
    for arguments in commands(page):
        check(arguments)


def test_a_command_that_is_none_is_found():
    for line in ("refsd nope", "refsd conform --nope", "uv run refsd golden nope", "refsd diff a b c"):
        (arguments,) = calls(line)
        with pytest.raises(AssertionError):
            check(arguments)


def test_the_list_names_commands_and_cases_that_exist():
    told = {arguments[0] for arguments in commands(COMMANDS)}
    assert len(told) >= 14
    globs = [a for arguments in commands(COMMANDS) for a in arguments if "/" in a and a.split("/")[0] in OPS]
    assert globs and all(fnmatch.filter(CASES, glob) for glob in globs)


def test_the_readmes_python_names_what_exists():
    python = "\n".join(line for line in code_lines(ROOT / "README.md") if "refsd." in line)
    named = re.findall(r"refsd\.(\w+)\(", python)
    assert {"golden", "judge", "assert_conforms", "forward", "watch"} <= set(named)
    assert all(callable(getattr(refsd, name)) for name in named)
    assert all(name in CASES for name in re.findall(r'refsd\.golden\("([^"]+)"', python))
    assert all(name in PROFILES for name in re.findall(r'numerics="([^"]+)"', python))


# Of the commands those that end in seconds.
CHEAP = (
    "golden show rms_norm --mutants",
    "sigmas --like comfyui",
    "noise --like sdcpp --seed 42",
    "weights make sd15 --tiny -o tiny.safetensors",
    "info tiny.safetensors",
)


@pytest.mark.jitted
def test_the_cheap_commands_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = [
        " ".join(arguments).replace("model.safetensors", "tiny.safetensors") for arguments in commands(COMMANDS)
    ]
    for command in CHEAP:
        assert command in told
        done = CliRunner().invoke(app, shlex.split(command))
        assert done.exit_code == 0, f"{command}: {done.output}"


def links(page: Path) -> list[str]:
    text = re.sub(r"```.*?```", "", prose(page), flags=re.S)
    return [target for target in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in target]


def prose(page: Path) -> str:
    """The text of a page of Markdown, or of a notebook's cells of Markdown."""
    text = page.read_text(encoding="utf-8")
    if page.suffix != ".ipynb":
        return text
    return "\n\n".join(
        "".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown"
    )


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub writes them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("page", NOTEBOOKS, ids=lambda page: page.stem)
def test_every_path_in_a_notebooks_prose_is_a_link(page):
    named = re.findall(r"(\[?)`([^`\s]*(?:/|\.py|\.md)[^`\s]*)`(?:\]\(\.\./(\S+?)\))?", prose(page))
    assert named
    for opened, path, target in named:
        assert opened and path == target, f"{page.name}: {path} is no link to that file"


@pytest.mark.parametrize("page", [*PAGES, *NOTEBOOKS], ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page):
    for target in links(page):
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), f"{page}: {target}"
        if anchor:
            assert anchor in anchors(there), f"{page}: {target}"


def test_the_glossarys_shifts_are_those_of_the_schedules():
    page = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) x \1 \| (\d+) \| ([\d.]+) \| ([\d.]+) \|$", page, re.M)
    assert len(rows) == 4
    for side, tokens, shift, half in rows:
        assert int(tokens) == (int(side) // 16) ** 2
        levels = FlowLevels(shift_by_tokens(int(tokens), 20))
        assert f"{levels.shift:.2f}" == shift
        assert (
            f"{shift_exponential(0.5, flux_mu(int(tokens))):.3f}" == half == f"{shift_snr(0.5, levels.shift):.3f}"
        )
    assert f"by {shift_by_tokens(4096, 20) / shift_by_tokens(256, 20):.2f} where the root gives 4" in page


def test_a_shift_by_the_root_keeps_the_uncertainty_of_a_grey_picture():
    """The mean of n pixels (1 - t) c + t noise tells c up to t / ((1 - t) sqrt(n)): the glossary's formula."""
    uncertainty = lambda t, pixels: t / ((1 - t) * pixels**0.5)
    for t in (0.1, 0.5, 0.9):
        larger = shift_snr(t, (4096 / 256) ** 0.5)
        assert larger > t and uncertainty(larger, 4096) == pytest.approx(uncertainty(t, 256), rel=1e-12)


@pytest.mark.jitted
def test_the_picture_is_of_a_real_run(tmp_path):
    """The picture holds what the commands print now, whatever the widths of the lines."""
    tool = runpy.run_path(str(ROOT / "website" / "cast.py"))
    shown = " ".join(re.search(r"<desc[^>]*>(.*?)</desc>", tool["PICTURE"].read_text(), re.S)[1].split())
    printed = tool["draw"](tool["lines"](tool["run"](tmp_path)))
    assert " ".join(re.search(r"<desc[^>]*>(.*?)</desc>", printed, re.S)[1].split()) == shown
    assert "divided by n - 1" in shown
