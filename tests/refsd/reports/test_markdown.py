"""Markdown for the summary of a CI job: short, the verdict first, the rest folded; and JUnit beside a baseline."""

from xml.etree import ElementTree

from sample_reports import EPS, fails, report, result

from refsd.golden import verdict
from refsd.golden.report import Baseline
from refsd.reports.junit import junit
from refsd.reports.markdown import markdown, pasted

_CAUSES = ("a", "b")


def test_the_verdict_and_the_causes_stand_before_anything_folded():
    text = markdown(report(fails("layer_norm/1", EPS), fails("rms_norm/1", EPS), result("silu/1")))
    assert text.startswith("# Does not conform: 3 answers of 1 engine, 2 not conforming\n\n")
    assert f"**ggml, 2 cases: {EPS}**\n\n- layer_norm/1, margin 3.00\n- rms_norm/1, margin 3.00\n" in text
    assert text.index(EPS) < text.index("| engine | version |") < text.index("<details>")
    assert text.count("<details>") == text.count("</details>") == 2
    assert len(markdown(report(*(result(f"silu/{i}") for i in range(5000))))) < 1000


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
    assert root.findall(".//failure")[0].get("message") == "1 of 9 answers judged"


def test_junit_skips_what_is_known():
    odd = report(fails("a/1", EPS), fails("a/2", EPS), result("a/3", verdict.ERROR, reason="crash"))
    odd.baseline = Baseline("old.json", new=[("ggml", "a/2")], known=[("ggml", "a/1"), ("ggml", "a/3")])
    (suite,) = ElementTree.fromstring(junit(odd))
    assert [suite.get(key) for key in ("tests", "failures", "errors", "skipped")] == ["3", "1", "0", "2"]
    assert suite.find(".//skipped").get("message").startswith("known failure: y: element")


def test_six_lines_for_an_issue():
    odd = [fails(f"op{i}/{j}", f"cause {i}", reason="<b> | " * 300) for i in range(9) for j in range(i)]
    lines = pasted(report(*odd), {"ggml": "ggml:lib"}).splitlines()
    assert len(lines) == 6
    assert lines[0].startswith("**ggml 1.0 does not conform: 36 answers of 1 engine, 36 not conforming** (refsd ")
    assert lines[1].startswith("- ggml, 8 cases: cause 8. `op8/0`, ")
    assert " <b>" not in lines[1] and len(lines[1]) < 700
    assert lines[4] == "- ... and 5 other groups"
    assert lines[5] == "- again: `refsd conform ggml:lib --cases op8/0`"
    assert pasted(report(result("silu/1")), {"ggml": "ggml"}).count("\n") == 0
