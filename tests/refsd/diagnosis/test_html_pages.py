"""The doctor's pages: self-contained, with a mark for each thing that was measured."""

import re

import pytest
from damaged_files import DAMAGES

from refsd.cli import main
from refsd.golden.case import ModelRecipe
from refsd.weights import recipes


@pytest.fixture
def run(monkeypatch):
    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["refsd", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit:
            main()
        return exit.value.code or 0

    return run


def page(path) -> str:
    """The page, which must load nothing and run nothing."""
    text = path.read_text("utf-8")
    assert "<script" not in text and not re.findall(r'(?:src|href)="(?!#)', text)
    assert "default-src 'none'" in text
    return text


def test_of_a_damaged_file_and_of_what_changed(run, tmp_path, capsys):
    (tmp_path / "bad").mkdir()
    bad = DAMAGES["transposed"][0](tmp_path / "bad")
    out = tmp_path / "info.html"
    assert run("info", bad, "--html", out) == 2
    first = capsys.readouterr().out.splitlines()[0]
    text = page(out)
    assert f'<h1 class="bad">{first}</h1>' in text
    assert text.count('<circle class="over"') == 1 and text.count('<circle class="within"') == 88
    assert "layers.0.feed_forward.w1.weight: 0.0" in text

    good = recipes.make(ModelRecipe("zimage", "f16", True), tmp_path / "good.safetensors")
    assert run("diff", good, bad, "--html", tmp_path / "diff.html") == 1
    text = page(tmp_path / "diff.html")
    assert "1 tensor of 89 differ by more than their storage type" in text
    assert 'scope="row">zimage: layers.0.feed_forward.w1.weight<' in text


def test_of_ranges_and_of_quality(run, tmp_path, capsys):
    model = recipes.make(ModelRecipe("zimage", "f16", True), tmp_path / "a.safetensors")
    assert run("range", model, "--html", tmp_path / "range.html") == 0
    first = capsys.readouterr().out.splitlines()[2].split()[-1]
    text = page(tmp_path / "range.html")
    assert "Nothing overflows float16" in text and ">65504<" in text
    assert text.index(f'scope="row">{first}<') < text.index('scope="row">x_embedder<')

    command = "quality", model, "--types", "q8_0,q4_0", "--steps", "2"
    assert run(*command, "--html", tmp_path / "quality.html") == 0
    text = page(tmp_path / "quality.html")
    assert text.count("<polyline") == 3, "q8_0, and q4_0 without and with a matrix"
    assert text.count("35 layers, by name") == 3


def test_a_page_of_reports_is_refused(run, tmp_path, capsys):
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text("{}")
    assert run("diff", tmp_path / "a.json", tmp_path / "b.json", "--html", tmp_path / "x.html") == 2
    assert "--html: `refsd conform --report`" in capsys.readouterr().err
