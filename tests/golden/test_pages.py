"""Pages of a folder are found by themselves, and no two of them have a row of one name."""

from typing import NamedTuple

import pytest

from refsd.golden.pages import by_name, rows


class Named(NamedTuple):
    name: str


@pytest.mark.parametrize(("joined", "table"), [(rows, "ROWS"), (by_name, "LISTED")])
def test_rows_of_one_name_are_refused(joined, table, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    package = f"pages_of_{joined.__name__}"
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").touch()
    head = "from tests.golden.test_pages import Named\n"
    for page, name in (("a", "one"), ("b", "two"), ("c", "one")):
        text = f"{head}ROWS = {{{name!r}: {page!r}}}\nLISTED = [Named({name!r})]\n"
        (tmp_path / package / f"{page}.py").write_text(text)
    with pytest.raises(ValueError, match=f"two pages of {package} declare one"):
        joined(package, table)
    assert joined(package, "NO_TABLE") == {}
    (tmp_path / package / "c.py").unlink()
    assert [*joined(package, table)] == ["one", "two"]
