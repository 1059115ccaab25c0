"""Markdown for the summary of a CI job: short, the verdict first, the rest folded; and JUnit beside a baseline."""

from xml.etree import ElementTree

from sample_reports import EPS, fails, report, result

from refsd.golden import verdict
from refsd.golden.report import Baseline
from refsd.reports.cells import verdict_line
from refsd.reports.junit import junit
from refsd.reports.markdown import markdown, pasted
from refsd.reports.stored import decode, encode

_CAUSES = ("a", "b")


def test_the_verdict_and_the_causes_stand_before_anything_folded():
    text = markdown(report(fails("layer_norm/1", EPS), fails("rms_norm/1", EPS), result("silu/1")))
    assert text.startswith("# Does not conform: 3 answers of 1 engine, 2 not conforming\n\n")
    assert f"**ggml, 2 cases: {EPS}**\n\n- layer_norm/1, margin 3.00\n- rms_norm/1, margin 3.00\n" in text
    assert text.index(EPS) < text.index("| engine | version |") < text.index("<details>")
    assert text.count("<details>") == text.count("</details>") == 2
    assert len(markdown(report(*(result(f"silu/{i}") for i in range(5000))))) < 1000


def test_a_long_word_at_the_end_is_cut_and_not_left_out():
    text = markdown(report(fails("a/1", reason="a/1: " + "m" * 500)))
    assert f"a/1: {'m' * 391} ...\n" in text
    words = markdown(report(fails("a/1", reason="word " * 100)))
    assert f"{'word ' * 79}...\n" in words


def test_it_fits_a_summary_whatever_fails():
    """GitHub takes 1 MiB."""
    odd = [
        fails(f"op{'x' * (i % 50)}/{i}", *_CAUSES[: i % 3], reason="|<&[" * 500, engine=f"e{i % 9}")
        for i in range(6000)
    ]
    refused = [result(f"x/{i}", verdict.REFUSED, reason=f"{i} " + "<" * 1900) for i in range(3000)]
    text = markdown(report(*odd, *refused, shared=["s" * 3000] * 500, notes=["n"] * 500))
    assert len(text.encode()) < 2**20
    assert all(f"{said} in conform.json" in text for said in ("other groups,", "more,"))
    assert "- ... and 2800 more" in text


def test_beside_a_baseline_new_failures_are_marked():
    odd = report(fails("a/1", EPS), fails("a/2", EPS))
    odd.baseline = Baseline("old.json", [("ggml", "a/2")], [("ggml", "a/1")], [("ggml", "a/3")], [("ggml", "a/4")])
    text = markdown(odd)
    assert "2 not conforming: 1 new, 1 known from old.json; 1 fixed" in text
    assert "- a/2 (new), margin" in text and "- a/1, margin" in text
    assert "Fixed since the baseline: 1" in text and "- ggml: a/3" in text and "- ggml: a/4" in text


def test_a_partial_report_says_so():
    text = markdown(report(result("a/1"), partial="1 of 9 answers judged"))
    assert text.startswith("# Interrupted: 1 answer of 1 engine, 0 not conforming; 1 of 9 answers judged\n")
    root = ElementTree.fromstring(junit(report(result("a/1"), partial="1 of 9 answers judged")))
    assert root.findall(".//failure")[0].get("message") == "interrupted: 1 of 9 answers judged"


def test_junit_skips_what_is_known():
    odd = report(fails("a/1", EPS), fails("a/2", EPS), result("a/3", verdict.ERROR, reason="crash"))
    odd.baseline = Baseline("old.json", new=[("ggml", "a/2")], known=[("ggml", "a/1"), ("ggml", "a/3")])
    (suite,) = ElementTree.fromstring(junit(odd))
    assert [suite.get(key) for key in ("tests", "failures", "errors", "skipped")] == ["3", "1", "0", "2"]
    assert suite.find(".//skipped").get("message").startswith(f"known from the baseline: {EPS}: y: element")
    assert suite.find(".//failure").get("message").startswith(f"{EPS}: y: element")


def test_operations_that_an_engine_lacks_are_counted_apart_and_no_tests():
    lacking = [result("roll/1", verdict.REFUSED, reason="no roll in this ggml")]
    lacking += [
        result(f"{op}/{i}", verdict.REFUSED, reason=f"ggml has no {op}") for op in ("gelu", "tanh") for i in "12"
    ]
    one = [result(f"{op}/1", verdict.REFUSED, reason=f"ggml takes no f16 in {op}") for op in ("silu", "linear")]
    run = report(result("silu/2"), *one, *lacking)
    (suite,) = ElementTree.fromstring(junit(run))
    assert [suite.get(key) for key in ("tests", "skipped")] == ["3", "2"]
    assert [test.get("name") for test in suite] == ["silu/2", "silu/1", "linear/1"]
    assert "| 2, and 5 of 3 operations that it lacks |" in markdown(run)
    # An engine that takes nothing has its tests: an empty suite would say nothing.
    (suite,) = ElementTree.fromstring(junit(report(*lacking)))
    assert (suite.get("skipped"), "| 5 |" in markdown(report(*lacking))) == ("5", True)


def test_six_lines_for_an_issue():
    odd = [fails(f"op{i}/{j}", f"cause {i}", reason="<b> | " * 300) for i in range(9) for j in range(i)]
    lines = pasted(report(*odd), {"ggml": "ggml:lib"}).splitlines()
    assert len(lines) == 6
    assert lines[0].startswith("**ggml 1.0 does not conform: 36 answers of 1 engine, 36 not conforming** (refsd ")
    assert lines[1].startswith("- ggml, 8 of 36 failing cases: cause 8. `op8/0`, ")
    assert " <b>" not in lines[1] and len(lines[1]) < 700
    assert lines[4] == "- ... and 5 other groups"
    assert lines[5] == "- again: `refsd conform ggml:lib --cases op8/0`"
    assert pasted(report(result("silu/1")), {"ggml": "ggml"}).count("\n") == 0


def test_the_command_that_asks_again_is_quoted_for_a_shell():
    lines = pasted(report(fails("silu/1")), {"ggml": "exec:./engine rms"}).splitlines()
    assert lines[-1] == "- again: `refsd conform 'exec:./engine rms' --cases silu/1`"


def test_what_is_waived_is_counted_with_its_day():
    waived = [
        result(f"a/{day}", verdict.WAIVED, reason=f"y: x; the case waived until 2027-03-{day}: issue")
        for day in (30, 31)
    ]
    first, *_ = pasted(report(result("a/1"), waived[1]), {}).splitlines()
    assert "conforms: 2 answers of 1 engine, 0 not conforming (1 waived until 2027-03-31)**" in first
    assert "(2 waived, the first until 2027-03-30)" in pasted(report(*waived), {})


def test_a_new_failure_comes_first_and_is_the_one_to_ask_again():
    old = [fails(f"a/{i}", EPS) for i in range(5)]
    odd = report(*old, fails("b/1", "scale"))
    odd.baseline = Baseline("old.json", new=[("ggml", "b/1")], known=[(r.engine, r.case) for r in old])
    lines = pasted(odd, {"ggml": "ggml"}).splitlines()
    assert lines[1].startswith("- ggml, 1 of 6 failing cases, new: scale. `b/1`, ")
    assert lines[2].startswith("- ggml, 5 of 6 failing cases, all known from the baseline: ")
    assert lines[-1].endswith("--cases b/1`")


def test_a_crash_is_told_once_and_ends_at_a_word():
    said = "ended with exit code 101: " + "panicked " * 80 + "at a backtrace."
    lines = pasted(report(result("a/1", verdict.ERROR, reason=said)), {}).splitlines()
    assert lines[1].count("ended with") == 1 and ".." not in lines[1].replace(" ...", "") and ", :" not in lines[1]
    assert "panicked" in lines[1] and "`a/1`" in lines[1]


def test_the_last_lines_of_a_crash_are_kept():
    odd = report(result("a/1", verdict.ERROR, reason="ended", log=("thread main", "<b> index out of bounds")))
    assert "      thread main\n      <b> index out of bounds\n" in markdown(odd)
    assert decode(encode(odd)).results[0].log == odd.results[0].log


def test_known_failures_and_too_few_answers_are_no_contradiction():
    known = report(fails("a/1", EPS), result("a/2"))
    known.baseline = Baseline("old.json", known=[("ggml", "a/1")])
    line = (
        "conforms but for known failures: 2 answers of 1 engine, 1 not conforming: all known from old.json; 0 fixed"
    )
    assert verdict_line(known) == line
    few = report(result("a/1"), shortage=["ggml ran 1 case, expected at least 9"])
    assert verdict_line(few) == (
        "does not conform: too few answers: ggml ran 1 case, expected at least 9. "
        "Those given conform: 1 answer of 1 engine, 0 not conforming"
    )
