"""Each page of docs/findings is a whole report, and the index leads to it."""

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "docs" / "findings"
INDEX = FOLDER / "README.md"
PAGES = sorted(set(FOLDER.glob("*.md")) - {INDEX})
PARTS = ["Reproduce", "Expected", "Got", "Why", "Fix"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_finding_has_every_part(page):
    text = page.read_text()
    head, *parts = re.split(r"^## ", text, flags=re.MULTILINE)
    assert re.match(r"# \S.{10,110}\n\n- Version: .*\d[^\n]*\n- Date: [^\n]*\b20\d\d\b", head), page.name
    assert [part.partition("\n")[0] for part in parts] == PARTS
    contents = [part.partition("\n")[2].strip("\n") for part in parts]
    assert all(contents) and "@" not in head
    # A reproducer has code or commands of its own, or is another page's program.
    assert re.search(r"^    \S", contents[0], re.MULTILINE) or re.search(r"\]\([\w-]+\.md\)", contents[0])


def test_the_index_names_every_finding_once_and_pages_lead_to_it():
    linked = re.findall(r"^- \[.+\]\(([\w-]+\.md)\)$", INDEX.read_text(), re.MULTILINE)
    assert sorted(linked) == [page.name for page in PAGES]
    for name in ("ggml.md", "sdcpp.md", "sdcpp_families.md"):
        assert "findings/README.md" in (FOLDER.parent / name).read_text()
