"""The board: counts that are right, links that lead somewhere, harmless text, the same bytes, and speed."""

import time
import tracemalloc

import msgspec
import pytest
from check_links import wrong_links
from html_pages import HOSTILE, Page
from sample_reports import EPS, fails, report, result
from typer.testing import CliRunner

from refsd.cli import app
from refsd.golden import verdict
from refsd.golden.operations import OPERATIONS
from refsd.golden.report import Report
from refsd.numerics.errors import BadInput
from refsd.reports.stored import encode
from refsd.scoreboard.cells import bad, judged
from refsd.scoreboard.families import FAMILIES, family
from refsd.scoreboard.pages import newest
from refsd.scoreboard.runs import read
from refsd.scoreboard.site import gathered
from refsd.scoreboard.trend import share


def _old_and_new() -> tuple[Report, Report]:
    odd = fails("conv2d/a", EPS, place="y", margin=9.0)
    cases = [
        result("silu/a"),
        result("silu/b", verdict.REFUSED, reason="no silu"),
        result("model/unet/a", op="model/unet"),
    ]
    old = report(odd, fails("conv2d/b", EPS), *cases, date="2026-10-01", devices={"ggml": "RTX 9"})
    new = report(
        odd, result("conv2d/b"), *cases, date="2026-11-01", devices={"ggml": "RTX 9"}, profile="2026.11/ops"
    )
    new.engines["ggml"] = "1.1 (libggml.so)"
    return old, new


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "reports"
    (place / "october").mkdir(parents=True)
    old, new = _old_and_new()
    (place / "october" / "conform.json").write_bytes(encode(old))
    (place / "new.json").write_bytes(encode(new))
    (place / "torch.json").write_bytes(encode(report(result("silu/a", engine="torch"), date="2026-11-02")))
    return place


def _board(folder, out, *options) -> str:
    done = CliRunner().invoke(app, ["scoreboard", str(folder), "-o", str(out), *options])
    if isinstance(done.exception, BadInput):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


def test_every_link_leads_somewhere_and_every_page_is_reached(folder, tmp_path):
    assert "3 runs, 5 pages" in _board(folder, tmp_path / "site")
    assert wrong_links(tmp_path / "site") == []


def test_the_board_counts_and_a_cell_leads_to_its_failing_cases(folder, tmp_path):
    _board(folder, tmp_path / "site")
    page = Page((tmp_path / "site" / "index.html").read_text("utf-8"))
    assert "2 engines, 3 runs, 9 verdicts, up to 2026-11-02." in page.words
    assert "\u2717 1 of 2" in page.words and "\u2717 2 of 2" in page.words and "1 refused" in page.words
    rows = [attributes for attributes in page.of("tr") if "data-bad" in attributes]
    assert [row["data-bad"] for row in rows] == ["2", "1", "0"]
    assert [row.get("data-old") for row in rows] == ["1", None, None]
    link = next(a["href"] for a in page.of("a") if a["href"].endswith("#convolution") and "ggml" in a["href"])
    run = Page((tmp_path / "site" / link.partition("#")[0]).read_text("utf-8"))
    told = ["conv2d/b", "first wrong place", "y", "cause", EPS, "the reference agrees if", "no silu"]
    assert all(text in run.words for text in told)
    assert "66.7% to" not in page.words and "50.0% to 75.0%" in str([svg["aria-label"] for svg in page.of("svg")])


def test_the_same_reports_give_the_same_bytes_and_runs_json_makes_them_again(folder, tmp_path):
    _board(folder, tmp_path / "a")
    _board(folder, tmp_path / "b")
    _board(tmp_path / "a" / "runs.json", tmp_path / "c")
    files = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*") if path.is_file())
    assert len(files) == 6
    for name in files:
        data = (tmp_path / "a" / name).read_bytes()
        assert (tmp_path / "b" / name).read_bytes() == data == (tmp_path / "c" / name).read_bytes(), name


def test_what_is_no_report_is_left_out_and_named(folder, tmp_path):
    (folder / "broken.json").write_text('{"refsd": 1}')
    (folder / "broken.zip").write_bytes(b"PK")
    (folder / "partial.json").write_bytes(encode(report(result("silu/a"), partial="1 of 9 answers judged")))
    (folder / "odd.json").write_bytes(encode(report(result("silu/a", "splendid"))))
    told = msgspec.json.decode(_board(folder, tmp_path / "site", "--json").splitlines()[-1])
    assert told["runs"] == 3 and len(told["left_out"]) == 4
    for empty in (tmp_path / "none", tmp_path / "site" / "runs"):
        with pytest.raises(BadInput, match=r"no such folder|no report"):
            _board(empty, tmp_path / "other")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").touch()
    with pytest.raises(BadInput, match="mine"):
        _board(folder, tmp_path / "mine")


def test_hostile_text_stays_text(tmp_path):
    text = HOSTILE.replace("\ud800", "")  # no JSON holds it
    odd = fails("conv2d/a", text, engine=text, reason=text, place=text)
    (tmp_path / "r.json").write_bytes(encode(report(odd, devices={text: text}, date=text)))
    _board(tmp_path / "r.json", tmp_path / "site")
    for path in (tmp_path / "site").rglob("*.html"):
        page = Page(path.read_text("utf-8"))
        assert len(page.of("script")) == 1 and not page.of("img") and not page.of("b"), path
        policy = next(meta["content"] for meta in page.of("meta") if "http-equiv" in meta)
        assert policy.startswith("default-src 'none'")
    assert wrong_links(tmp_path / "site") == []


def test_every_operation_has_a_family():
    assert family("conv2d") == "convolution" and family("model/unet") == "UNets" and family("stage/new") == "stages"
    assert {family("never-seen"), family("stage/adapter"), family("trajectory")} <= set(FAMILIES)
    assert family("linear_nvfp4") == "linear" and {family(op) for op in OPERATIONS} < set(FAMILIES)


def test_counts_and_shares(tmp_path):
    (tmp_path / "r.json").write_bytes(encode(_old_and_new()[1]))
    (run,) = read(tmp_path / "r.json")
    assert run.counts["conv2d"] == {"fail": 1, "pass": 1} and run.margins["conv2d"] == 9.0
    assert (judged(run.counts["silu"]), bad(run.counts["conv2d"]), share(run)) == (1, 1, 0.75)


def test_versions_are_sorted_by_number(tmp_path):
    for i, version in enumerate(("0.25.3 (b)", "0.9.8 (a)")):
        one = report(result("silu/a"))
        one.engines["ggml"] = version
        (tmp_path / f"{i}.json").write_bytes(encode(one))
    runs = gathered([run for i in range(2) for run in read(tmp_path / f"{i}.json")])
    assert [run.version for run in runs] == ["0.9.8 (a)", "0.25.3 (b)"] and newest(runs) == runs[1:]


def test_many_large_reports_take_little_time_and_memory(tmp_path):
    cases = [result(f"conv2d/{i}", outputs=[]) for i in range(2950)] + [fails(f"silu/{i}", EPS) for i in range(50)]
    data = encode(report(*cases, date="2026-11-01"))
    for i in range(10):
        (tmp_path / f"{i}.json").write_bytes(data.replace(b"2026-11-01", f"2026-11-{i + 1:02}".encode()))
    tracemalloc.start()
    began = time.process_time()
    runs = [run for i in range(10) for run in read(tmp_path / f"{i}.json")]
    assert time.process_time() - began < 5
    assert tracemalloc.get_traced_memory()[0] < 3e6, "metrics and passing cases are kept"
    tracemalloc.stop()
    assert len({run.slug for run in runs}) == 10
