"""Text from outside: what a terminal, Markdown, XML and JSON get of it."""

import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from safetensors.numpy import save_file
from typer.testing import CliRunner

from refsd import bench
from refsd.cli import app
from refsd.golden import verdict
from refsd.golden.engine import EngineFailure
from refsd.golden.metrics import not_asked_for
from refsd.golden.report import Missing, Report, Result
from refsd.numerics.errors import BadInput
from refsd.numerics.printable import in_markdown, printable
from refsd.reports.html import html
from refsd.reports.junit import junit
from refsd.reports.markdown import markdown
from refsd.reports.terminal import print_report

HOSTILE = {
    "a title": ("\x1b]0;owned\x07", r"\x1b]0;owned\x07"),
    "a cleared screen": ("\x1b[2J\x1b[H", r"\x1b[2J\x1b[H"),
    "C1 controls": ("\x9b2J\x85", r"\x9b2J\x85"),
    "delete": ("a\x7f\x08b", r"a\x7f\x08b"),
    "lines": ("a\nb\r\tc\u2028d", r"a\nb\r\tc\u2028d"),
    "text turned round": ("\u202eabc\u2066\u061c", r"\u202eabc\u2066\u061c"),
    "half a character": ("\ud800x\udfff", r"\ud800x\udfff"),
    "no character": ("\ufffe\U000e0001", r"\ufffe\U000e0001"),
    "NUL": ("a\0b", r"a\x00b"),
    "other scripts": ("caf\xe9 \u65e5\u672c \U0001f680", "caf\xe9 \u65e5\u672c \U0001f680"),
    "markup": ("[red]a[/] [/nothing] :smile:", "[red]a[/] [/nothing] :smile:"),
    "HTML": ("<script>alert(1)</script>&amp;", "<script>alert(1)</script>&amp;"),
}
TEXTS = pytest.mark.parametrize(("text", "shown"), HOSTILE.values(), ids=HOSTILE)


@TEXTS
def test_whatever_is_no_printable_character_is_escaped(text, shown):
    assert printable(text) == shown
    assert printable(text).isprintable() and printable(printable(text)) == shown
    assert printable(text).encode()


@pytest.mark.parametrize("text", ["x" * 10**7, "\0" * 10**7, "\U000e0001" * 300])
def test_long_text_is_cut_once(text):
    shown = printable(text, 300)
    assert len(shown) == 300 and shown.endswith(f"... ({len(text)} characters)")
    assert printable(shown, 300) == shown
    assert printable("x" * 300, 300) == "x" * 300


def test_markdown_has_no_html_no_links_and_no_cells():
    text = "<img src=x> | [a](http://b) ![c](d) &lt; \\| `e`"
    assert in_markdown(text) == r"\<img src=x> \| \[a](http://b) !\[c](d) \&lt; \\\| `e`"


@TEXTS
@pytest.mark.parametrize("error", [EngineFailure, BadInput])
def test_errors_are_one_printable_line(error, text, shown):
    message = str(error(f"file {text}"))
    assert message.isprintable()
    assert message == f"file {shown}" or error is EngineFailure


@TEXTS
def test_a_report_holds_them_all(text, shown, capsys):
    result = Result("e", "c", "op", verdict.ERROR, reason=str(EngineFailure(text)))
    other = Result("e", "c", "op", verdict.REFUSED, reason=text)
    report = Report("0", {"e": text}, [Missing("m", text)], [result, other], [text])
    assert all(line.isprintable() for line in markdown(report).split("\n"))
    assert "<script>" not in markdown(report).replace(r"\<", "")
    page = html(report, {})
    assert all(line.isprintable() for line in page.split("\n")) and page.count("<script") == 1
    root = ElementTree.fromstring(junit(report))
    assert root.find("testsuite").get("name") == f"e {shown}"
    assert root.find(".//skipped").get("message") == shown


def test_names_of_outputs_are_shown_printable():
    for text, shown in HOSTILE.values():
        assert [m.output for m in not_asked_for({text: np.zeros(1)}, {})] == [shown]


@TEXTS
def test_bench_shows_an_absent_engine_as_it_is(text, shown, monkeypatch):
    monkeypatch.setattr(bench, "bench", lambda request, progress: {"refsd": bench.Entry({}, 0, {}, text)})
    answer = CliRunner().invoke(app, ["bench", "vae", "--model", "any"])
    assert answer.exit_code == 0 and f"refsd: absent: {shown}\n" in answer.stdout


@TEXTS
def test_conform_shows_its_report_as_it_is(text, shown, capsys):
    result = Result("e", "c", "op", verdict.ERROR, reason=printable(text))
    print_report(Report("0", {"e": "1"}, [Missing("m", printable(text))], [result]), Path("r"))
    told = capsys.readouterr().out
    assert f"e, 1 case: {shown}\n" in told and f"not judged: m: {shown}\n" in told


def test_info_and_compare_show_names_from_files(tmp_path):
    path = tmp_path / "a.safetensors"
    nasty = {text: np.ones(2, np.float32) for name, (text, _) in HOSTILE.items() if name != "half a character"}
    save_file({"y": np.ones(2, np.float32)} | nasty, path, metadata={"\x1b[2J": "\x1b]0;owned\x07[/red]"})
    for arguments in (["info", str(path), "--tensors"], ["info", str(path), "--json"]):
        answer = CliRunner().invoke(app, arguments)
        assert answer.exception is None or isinstance(answer.exception, SystemExit)
        assert all(line.isprintable() for line in answer.stdout.split("\n"))
    truth = tmp_path / "b.safetensors"
    save_file({"y": np.ones(2, np.float64)}, truth)
    for more in ([], ["--json"]):
        answer = CliRunner().invoke(app, ["compare", str(path), str(truth), "--honest", str(truth), *more])
        assert answer.exit_code == 0
        assert all(line.isprintable() for line in answer.stdout.split("\n"))
    (notes,) = json.loads(answer.stdout)["notes"]
    assert r"\x1b[2J\x1b[H" in notes and "[red]a[/] [/nothing] :smile:" in notes
