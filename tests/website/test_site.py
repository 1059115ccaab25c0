"""The site builds without a warning, every link of it leads somewhere, and it asks the network for nothing."""

import re
from pathlib import Path

import diagrams
import pytest
from check_links import wrong_links

pytestmark = pytest.mark.site

# What a student seeks -> pages that show it.
SOUGHT = {
    "Winograd": ("notebooks/01_convolution_to_winograd.html", "code/kernels/conv2d_winograd.py.html"),
    "Q4_K": ("code/kernels/quant/q4_k.py.html", "learn/block.html"),
    "LoKr": ("notebooks/04_lokr_without_the_product.html", "code/kernels/adapters/lokr.py.html"),
    "a Flux block": (
        "notebooks/06_a_flux_block.html",
        "learn/diagrams/flux.html",
        "code/refsd/models/flux.py.html",
    ),
    "the API": ("lookup/api.html",),
}


@pytest.mark.parametrize("sought", SOUGHT)
def test_two_clicks_lead_from_the_front_page_to_what_a_student_seeks(site, sought):
    clicks = clicks_from(site, "index.html")
    assert all(clicks.get(page, 99) <= 2 for page in SOUGHT[sought])
    assert min(clicks[page] for page in SOUGHT[sought]) == 1


def clicks_from(site: Path, start: str) -> dict[str, int]:
    """Count the clicks from a page to every page that two clicks reach."""
    clicks = {start: 0}
    for n in (1, 2):
        for name in [page for page, so_far in clicks.items() if so_far == n - 1]:
            text = (site / name).read_text(encoding="utf-8")
            for link in re.findall(r'href="([^"#:]+\.html)', text):
                page = ((site / name).parent / link).resolve().relative_to(site.resolve()).as_posix()
                clicks.setdefault(page, n)
    return clicks


def test_nothing_is_fetched_from_elsewhere(site):
    for path in site.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert not re.findall(r'<(?:script|link|img|iframe)[^>]*(?:src|href)="(?:https?:)?//[^"]*"', text), path


def test_equations_are_mathml(site):
    text = (site / "notebooks" / "01_convolution_to_winograd.html").read_text(encoding="utf-8")
    assert text.count("<math ") >= 10 and "$$" not in text


def test_a_diagram_holds_every_operation_that_ran():
    _, title, case, _ = diagrams.MODELS[3]
    steps = diagrams.trace(case)
    drawn = diagrams.draw(title, case, steps)
    assert [s.op for s in steps].count("attention") == 3, "a double block and two single ones"
    assert "published: 19" in drawn and "published: 38" in drawn
    assert drawn.count(">attention<") == 2 * 2, "name and operation, in the panels of two kinds of block"


def test_a_wrong_link_an_anchor_and_an_orphan_are_found(tmp_path):
    (tmp_path / "index.html").write_text('<a href="a.html#there">a</a><a href="b.html">b</a><img src="c.png">')
    (tmp_path / "a.html").write_text('<p id="here">')
    (tmp_path / "lost.html").write_text("<p>")
    assert sorted(wrong_links(tmp_path)) == [
        "index.html: a.html#there: no such anchor",
        "index.html: b.html: no such file",
        "index.html: c.png: no such file",
        "lost.html: no link leads to it",
    ]
