"""Notebooks on the site: what is folded, what stays, and the times in their table."""

import json
import re
from pathlib import Path

import notebook_pages
import pytest

pytestmark = pytest.mark.site

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_plotting_is_folded_and_what_asserts_is_not(path):
    cells = notebook_pages.page(path, Path("source/notebooks/x.ipynb"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    folded = [cell["source"] for cell in code if "hide-input" in cell["metadata"].get("tags", [])]
    assert "import " in "".join(folded[0])
    assert not any(line.startswith("assert") for source in folded[1:] for line in source.splitlines())
    whole = "".join("".join(cell["source"]).replace("\n", "") for cell in code)
    stored = json.loads(path.read_text(encoding="utf-8"))["cells"]
    before = "".join("".join(cell["source"]) for cell in stored if cell["cell_type"] == "code")
    assert whole == before.replace("\n", ""), "no line is lost"
    assert f"execute.py -o mine {path.name}" in cells[1]["source"]


def test_a_cell_is_parted_where_its_plotting_begins():
    picture = {"data": {"image/png": ""}}
    source = "y = f(x)\n\n# draw\nfig = 1\nfig.show()"
    cell = {"cell_type": "code", "metadata": {}, "outputs": [picture], "source": source}
    computing, plotting = notebook_pages._parted(cell)
    assert computing["source"] == "y = f(x)" and computing["outputs"] == []
    assert plotting["source"] == "# draw\nfig = 1\nfig.show()" and plotting["outputs"] == [picture]
    cell["source"] += "\nassert y"
    assert notebook_pages._parted(cell) == [cell]


def test_the_table_has_the_time_of_each():
    rows = re.findall(r"\((\w+\.ipynb)\).*\| (\d+) \|", (FOLDER / "README.md").read_text(encoding="utf-8"))
    assert {name: int(time) for name, time in rows} == {
        path.name: notebook_pages.minutes(path) for path in NOTEBOOKS
    }


def test_the_page_offers_the_file(site):
    text = (site / "notebooks" / "02_attention_to_flash.html").read_text(encoding="utf-8")
    (link,) = re.findall(r'href="([^"]+02_attention_to_flash\.ipynb)"', text)
    assert (site / "notebooks" / link).resolve().read_bytes() == (
        FOLDER / "02_attention_to_flash.ipynb"
    ).read_bytes()
    assert text.count("<details") > 4
