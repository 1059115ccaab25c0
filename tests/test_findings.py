"""Each page of docs/findings is a whole report, and the index leads to it."""

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "docs" / "findings"
INDEX = FOLDER / "README.md"
PAGES = sorted(set(FOLDER.glob("*.md")) - {INDEX})
# What a page says, as a heading or at the beginning of a sentence.
PARTS = ["Expected", "Got", "Why"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_finding_has_every_part(page):
    title, version, text = page.read_text().split("\n\n", 2)
    assert re.fullmatch(r"# \S.{10,110}", title)
    assert re.search(r"\d\.\d", version), "no version"
    places = [re.search(rf"(^|\. )(## )?{part}\b", text, re.MULTILINE) for part in PARTS]
    assert all(places), dict(zip(PARTS, places, strict=True))
    reproducer = text[: places[0].start()]
    # A reproducer is code or commands, or another page's program.
    assert re.search(r"^( {4}\S|```)", reproducer, re.MULTILINE) or re.search(r"\]\([\w-]+\.md\)", reproducer)


def test_the_index_names_every_finding_once_and_pages_lead_to_it():
    linked = re.findall(r"^- \[.+\]\(([\w-]+\.md)\)$", INDEX.read_text(), re.MULTILINE)
    assert sorted(linked) == [page.name for page in PAGES]
    for name in ("ggml.md", "sdcpp.md", "sdcpp_families.md"):
        assert "findings/README.md" in (FOLDER.parent / name).read_text()
