"""Two reports held against each other: baseline, diff, last failed."""

import msgspec
import pytest
from sample_reports import EPS, fails, report, result
from typer.testing import CliRunner

from refsd.cli import app
from refsd.golden import verdict
from refsd.golden.case import Case
from refsd.numerics.errors import BadInput
from refsd.reports.changes import against, compare
from refsd.reports.last_failed import LastFailed
from refsd.reports.stored import decode, encode, read


def _kinds(old, new, factor=2.0):
    changes = compare(report(*old, result("same/1")), report(*new, result("same/1")), factor)
    assert changes.got_worse == bool(changes.worse or changes.gone)
    return [[c.case for c in kind] for kind in (changes.worse, changes.better, changes.other)]


@pytest.mark.parametrize(
    ("old", "new", "kinds"),
    [
        (result("a/1"), result("a/1"), [[], [], []]),
        (result("a/1"), fails("a/1"), [["a/1"], [], []]),
        (fails("a/1"), result("a/1"), [[], ["a/1"], []]),
        (fails("a/1"), result("a/1", verdict.WAIVED, 3.0), [[], [], ["a/1"]]),
        (result("a/1"), result("a/1", verdict.WAIVED), [[], [], ["a/1"]]),
        (result("a/1"), result("a/1", verdict.REFUSED), [["a/1"], [], []]),
        (result("a/1", verdict.REFUSED), result("a/1"), [[], [], ["a/1"]]),
        (result("a/1", verdict.REFUSED), fails("a/1"), [["a/1"], [], []]),
        (fails("a/1"), result("a/1", verdict.REFUSED), [[], [], ["a/1"]]),
        (fails("a/1"), result("a/1", verdict.ERROR), [[], [], ["a/1"]]),
        (result("a/1", margin=0.2), result("a/1", margin=0.5), [["a/1"], [], []]),
        (result("a/1", margin=0.2), result("a/1", margin=0.3), [[], [], []]),
        (result("a/1", margin=0.5), result("a/1", margin=0.2), [[], ["a/1"], []]),
        (result("a/1", margin=0.001), result("a/1", margin=0.1), [[], [], []]),
        (fails("a/1", margin=2.0), fails("a/1", margin=9.0), [["a/1"], [], []]),
        (fails("a/1", margin=verdict.INFINITE), fails("a/1", margin=verdict.INFINITE), [[], [], []]),
    ],
)
def test_what_is_worse(old, new, kinds):
    assert _kinds([old], [new]) == kinds


def test_what_one_report_alone_has():
    assert _kinds([], [fails("new/1")]) == [["new/1"], [], []]
    assert _kinds([fails("old/1")], [result("new/1")]) == [[], [], []]
    changes = compare(report(result("a/1"), result("a/2")), report(result("a/1"), result("a/3")), 2)
    assert (changes.only_old, changes.only_new, changes.got_worse) == (1, 1, False)


def test_an_engine_that_is_gone_is_worse():
    both = report(result("a/1"), result("a/1", engine="torch"))
    assert compare(both, report(result("a/1")), 2).gone == ["torch"]
    silent = report(result("a/1"), result("a/1", verdict.REFUSED, engine="torch"))
    assert compare(both, silent, 2).got_worse and compare(silent, both, 2).gone == []


def test_reports_with_nothing_in_common_are_bad_input():
    with pytest.raises(BadInput, match="in common"):
        compare(report(result("a/1")), report(result("a/1", engine="torch")), 2)


def test_a_baseline_makes_known_failures_count_no_more():
    old = report(fails("a/1"), fails("a/2"), result("a/3"), fails("a/4"), fails("a/5"))
    new = report(fails("a/1"), result("a/2"), result("a/3"), result("a/4", verdict.REFUSED))
    assert not new.conforms
    new.baseline = against(old, new, "old.json")
    assert [case for _, case in new.baseline.known] == ["a/1"] and new.baseline.new == []
    assert [case for _, case in new.baseline.fixed] == ["a/2"]
    assert [case for _, case in new.baseline.unseen] == ["a/4", "a/5"]
    assert new.conforms
    new.results.append(fails("a/3"))
    new.baseline = against(old, new, "old.json")
    assert new.baseline.new == [("ggml", "a/3")] and not new.conforms


@pytest.mark.parametrize(
    ("then", "now", "margin", "known"),
    [
        ("eps missing", "1 is added to weight", 90.0, False),
        ("eps missing", "1 is added to weight", 9.0, True),  # what fits best may change with the processor
        ("eps missing", "eps missing", 90.0, True),
        ("scale is 1/sqrt(L) = 0.2236, not 0.1768", "scale is 1/sqrt(L) = 0.3, not 0.1768", 90.0, True),
        ("eps missing", "", 90.0, True),
    ],
)
def test_a_known_failure_of_another_cause_and_a_larger_margin_is_new(then, now, margin, known):
    old = report(fails("a/1", then, margin=8.0))
    new = report(fails("a/1", *filter(None, [now]), margin=margin))
    new.baseline = against(old, new, "old.json")
    assert new.conforms == known and len(new.baseline.known) == known


def test_a_known_shortage_counts_no_more_and_a_partial_report_never_conforms():
    short = report(result("a/1"), shortage=["ggml ran 1 case, expected at least 2"])
    assert not short.conforms
    short.baseline = against(short, short, "old.json")
    assert short.conforms
    short.baseline = against(report(result("a/1")), short, "old.json")
    assert not short.conforms
    assert not report(result("a/1"), partial="1 of 2 answers judged").conforms


def _written(path, *results, **fields):
    path.write_bytes(encode(report(*results, **fields)))
    return path


def test_last_failed_knows_what_failed_and_forgets_nothing(tmp_path):
    path = _written(tmp_path / "r.json", result("a/1"), fails("a/2"), fails("a/2", engine="torch"), fails("a/3"))
    last = LastFailed.read(path, ["*"])
    assert [case.name for case in last.cases({name: Case(name, "silu", {}) for name in ("a/3", "a/2", "a/1")})] == [
        "a/2",
        "a/3",
    ]
    assert last.wants("ggml", "a/3") and not last.wants("torch", "a/3") and not last.wants("ggml", "a/1")
    left = last.left([result("a/2")])
    assert [(r.engine, r.case) for r in left] == [("torch", "a/2"), ("ggml", "a/3")]
    with pytest.raises(BadInput, match="leave out --cases"):
        LastFailed.read(path, ["a/*"])
    with pytest.raises(BadInput, match="a/2 failed and is no longer a case"):
        last.cases({})
    engine = msgspec.defstruct("Engine", [("name", str)])
    groups = {"ggml": [engine("ggml")], "x": [engine("torch"), engine("y")], "z": [engine("z")]}
    assert last.engines(groups) == {"ggml": [engine("ggml")], "x": [engine("torch")]}
    with pytest.raises(BadInput, match="torch failed and is not among the engines"):
        last.engines({"ggml": [engine("ggml")]})


def _diff(*arguments):
    done = CliRunner().invoke(app, ["diff", *map(str, arguments)])
    return done.exit_code if not isinstance(done.exception, BadInput) else 2, done.output or str(done.exception)


def test_diff_has_an_exit_code_for_bisect(tmp_path):
    good = _written(tmp_path / "good.json", result("a/1"), result("a/2"))
    bad = _written(tmp_path / "bad.json", result("a/1"), fails("a/2", EPS))
    assert _diff(good, good) == (0, _diff(good, good)[1])
    code, text = _diff(good, bad)
    assert code == 1 and "worse   ggml  a/2  pass 0.25 -> fail 3.00" in text and EPS in text
    assert text.endswith(
        "1 worse, 0 better, 0 otherwise changed; 0 answers only in the old report, 0 only in the new\n"
    )
    assert _diff(bad, good)[0] == 0
    code, text = _diff(good, bad, "--json")
    assert code == 1 and msgspec.json.decode(text)["worse"][0]["case"] == "a/2"
    partial = _written(tmp_path / "partial.json", result("a/1"), partial="1 of 2 answers judged")
    assert "the new report is partial: 1 of 2 answers judged" in _diff(good, partial)[1]
    assert _diff(good, tmp_path / "none.json")[0] == 2
    (tmp_path / "no.json").write_text('{"refsd": 1}')
    assert _diff(good, tmp_path / "no.json")[1].startswith(str(tmp_path / "no.json"))


def test_a_hostile_report_is_printed_harmlessly(tmp_path):
    good = _written(tmp_path / "good.json", result("a/1", engine="\x1b[2J"))
    bad = _written(tmp_path / "bad.json", fails("a/1", engine="\x1b[2J", reason="\x1b]0;x\x07"))
    _, text = _diff(good, bad)
    assert all(line.isprintable() for line in text.split("\n")) and r"\x1b[2J" in text


def test_a_status_that_nobody_knows_is_no_report():
    with pytest.raises(BadInput, match="the status 'odd'"):
        decode(encode(report(result("a/1", "odd"))))


def test_a_file_that_is_too_large_or_no_report_is_named(tmp_path):
    for content in (b"", b"[]", b"\xff", b"[" * 10**5):
        (tmp_path / "x.json").write_bytes(content)
        with pytest.raises(BadInput, match=r"x\.json: not a conformance report"):
            read(tmp_path / "x.json")
