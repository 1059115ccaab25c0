"""The case files are what the judge says now of the bugs that they tell of."""

import re

import case_files
import pytest

pytestmark = pytest.mark.site


NUMBER = re.compile(r"[-+]?\d[\d.]*(e[-+]?\d+)?")


def words(path) -> list[str]:
    """A page without its figures, whose last digits are those of a processor."""
    return NUMBER.sub("0", path.read_text(encoding="utf-8")).split()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(case_files, "FOLDER", tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", case_files.FILES)
def test_a_page_is_what_its_script_makes(name, folder):
    case_files.make(name)
    there = case_files.ROOT / "docs" / "cases"
    assert words(folder / f"{name}.md") == words(there / f"{name}.md"), "run website/case_files.py"
    assert (there / f"{name}.svg").stat().st_size < 200_000


def test_a_page_shows_the_wrong_line_the_right_one_and_the_mend():
    for one in case_files.FILES.values():
        marks = [line[0] for line in one.line.strip("\n").splitlines()]
        assert {"-", "+", " "} == set(marks) and max(map(len, one.line.splitlines())) < 80
        assert "ended in" in one.mended or "No one engine" in one.mended or "#1848" in one.mended


def test_the_list_is_complete():
    there = case_files.ROOT / "docs" / "cases"
    assert (there / "README.md").read_text() == case_files.contents()
    assert {path.stem for path in there.glob("*.md")} == {"README", *case_files.FILES}
