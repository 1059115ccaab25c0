"""Every notebook runs in under a minute, shows what is stored in it, and asserts each equation that it states."""

import re
import runpy
import time
from pathlib import Path

import nbformat
import pytest

pytestmark = pytest.mark.notebook

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "notebooks"
NAMES = [
    "01_convolution_to_winograd",
    "02_attention_to_flash",
    "03_inside_gguf_blocks",
    "04_lokr_without_the_product",
    "05_a_unet_step",
    "06_a_flux_block",
    "07_z_image_from_prompt_to_velocity",
    "08_samplers_on_two_dimensions",
    "09_judging_an_engine",
    "10_qwen_image_from_words_to_latents",
]
TOOL = runpy.run_path(str(FOLDER / "execute.py"))
NUMBER = re.compile(r"[-+]?(\d[\d.]*(e[-+]?\d+)?|nan|inf)")


def read(name):
    return nbformat.read(FOLDER / f"{name}.ipynb", 4)


def shown(notebook):
    """What the cells print, without its figures, and how many pictures each draws."""
    words, pictures = [], []
    for cell in notebook.cells:
        outputs = cell.get("outputs", [])
        text = "".join(o.get("text", "") + o.get("data", {}).get("text/plain", "") for o in outputs)
        words.append(NUMBER.sub("0", text).split())
        pictures.append(sum("image/png" in o.get("data", {}) for o in outputs))
    return words, pictures


def tree():
    """The checkout's files and when each was written; the site may be built into build/ at the same time."""
    ours = lambda path: not any(part.startswith(".") or part in ("__pycache__", "build") for part in path.parts)
    files = (path for path in ROOT.rglob("*") if ours(path.relative_to(ROOT)) and path.is_file())
    return {path: path.stat().st_mtime_ns for path in files}


def timed(name):
    begun = time.perf_counter()
    notebook = TOOL["execute"](FOLDER / f"{name}.ipynb")
    return notebook, time.perf_counter() - begun


def test_the_list_is_complete():
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_runs_in_a_minute_and_shows_what_is_stored(name):
    before = tree()
    notebook, seconds = timed(name)
    if seconds > 60:  # it may have compiled kernels, which is done once
        notebook, seconds = timed(name)
    assert seconds < 60
    streams = {o.name for cell in notebook.cells for o in cell.get("outputs", []) if o.output_type == "stream"}
    assert streams <= {"stdout"}, "a warning is shown"
    TOOL["tidy"](notebook)
    assert shown(notebook) == shown(read(name)), "the stored outputs are stale: run notebooks/execute.py"
    assert tree() == before, "a notebook writes into the checkout"


@pytest.mark.parametrize("name", NAMES)
def test_every_equation_is_asserted_by_the_next_cell(name):
    cells = read(name).cells
    displayed = [i for i, cell in enumerate(cells) if cell.cell_type == "markdown" and "$$" in cell.source]
    assert len(displayed) >= 5
    for i in displayed:
        following = cells[i + 1]
        assert following.cell_type == "code" and re.search(r"^ *assert ", following.source, re.M), cells[i].source


@pytest.mark.parametrize("name", NAMES)
def test_what_is_stored_is_small_complete_and_of_no_machine(name):
    path = FOLDER / f"{name}.ipynb"
    text, notebook = path.read_text(encoding="utf-8"), read(name)
    nbformat.validate(notebook)
    assert len(text) < 300_000
    assert dict(notebook.metadata) == TOOL["METADATA"]
    assert all(not cell.metadata for cell in notebook.cells)
    assert all(cell.execution_count for cell in notebook.cells if cell.cell_type == "code")
    assert not re.search(r"/(home|root|tmp|mnt|Users)/|site-packages|Traceback", text)


@pytest.mark.parametrize("name", NAMES)
def test_needs_nothing_but_refsd_and_matplotlib(name):
    source = "\n".join(cell.source for cell in read(name).cells if cell.cell_type == "code")
    imported = set(re.findall(r"^(?:from|import) (\w+)", source, re.M))
    standard = {"collections", "concurrent", "fractions", "itertools", "math", "os", "pathlib", "struct"}
    standard |= {"tempfile", "time", "tracemalloc"}
    assert imported <= standard | {"gguf", "matplotlib", "ml_dtypes", "numpy", "refsd"}
