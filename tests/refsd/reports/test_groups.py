"""Failures stand together by their cause; where nothing explains them, by operation and looks."""

import datetime

import msgspec
import pytest
from sample_reports import EPS, NEAR, SCALE, fails, report, result

from refsd.golden import verdict
from refsd.golden.explanation import Nearest
from refsd.golden.report import Baseline, Result
from refsd.golden.waivers import Waiver, waive
from refsd.reports.groups import (
    CAUSE,
    DEVIATION,
    ERROR,
    UNEXPLAINED,
    WAIVED,
    case_list,
    groups,
    shared_causes_first,
)


def _titles(*results):
    return [(group.kind, len(group.results), group.title) for group in groups(report(*results))]


@pytest.mark.smoke
def test_cases_of_one_cause_stand_together_worst_first():
    (group,) = groups(report(fails("layer_norm/a", EPS), result("silu/a"), fails("rms_norm/b", EPS, margin=9.0)))
    assert (group.kind, group.title) == (CAUSE, EPS)
    assert [r.case for r in group.results] == ["rms_norm/b", "layer_norm/a"]
    assert group.heading(None) == f"ggml, 2 cases: {EPS}"


def test_a_cause_says_in_how_many_failing_cases_it_holds_all_of_one_number():
    answers = fails("a/1", EPS), fails("a/2", EPS), fails("a/3", SCALE), fails("a/4"), fails("b/1", SCALE)
    headings = [group.heading(None) for group in groups(report(*answers)) if group.kind == CAUSE]
    assert headings == [f"ggml, 2 of 5 failing cases: {EPS}", f"ggml, 2 of 5 failing cases: {SCALE}"]


def test_the_fewest_causes_explain_all():
    """One case names another cause first, but shares its second with the rest."""
    assert _titles(fails("a/1", SCALE, EPS), fails("a/2", EPS), fails("a/3", EPS)) == [(CAUSE, 3, EPS)]
    assert _titles(fails("a/1", SCALE), fails("a/2", EPS), fails("a/3", EPS)) == [
        (CAUSE, 2, EPS),
        (CAUSE, 1, SCALE),
    ]
    most = fails("a/1", SCALE, EPS), fails("a/2", SCALE, EPS), fails("a/3", EPS)
    assert _titles(*most) == [(CAUSE, 3, EPS)]
    # As many each way: the likelier one of both.
    assert _titles(fails("a/1", SCALE, EPS)) == [(CAUSE, 1, SCALE)]


def test_a_cause_of_one_case_does_not_lead_where_nothing_explains_the_others():
    for many, first in ((8, UNEXPLAINED), (7, CAUSE)):
        rest = [fails(f"conv2d/{n}") for n in range(many)]
        assert _titles(fails("conv2d/x", EPS), *rest)[0][0] == first
        assert _titles(fails("silu/x", EPS), *rest)[0] == (CAUSE, 1, EPS), "another operation"


def test_the_cause_of_the_group_comes_first_in_each_answer_and_its_reason():
    alone, other = fails("a/1", SCALE, EPS), fails("a/2", EPS)
    alone = msgspec.structs.replace(alone, reason=f"y: x; the reference agrees if {SCALE} or {EPS}; waived")
    first, second, *_ = shared_causes_first([alone, other, fails("a/3", EPS), result("a/4"), fails("a/5")])
    assert first.causes == (EPS, SCALE) and second == other
    assert first.reason == f"y: x; the reference agrees if {EPS} or {SCALE}; waived"
    assert shared_causes_first([alone]) == [alone]


def test_what_a_baseline_has_not_comes_first():
    """In every form of the report: the terminal's and the one to paste."""
    odd = report(fails("a/1", EPS), fails("a/2", EPS), fails("b/1", SCALE))
    odd.baseline = Baseline("old", new=[("ggml", "b/1")], known=[("ggml", "a/1"), ("ggml", "a/2")])
    assert [group.title for group in groups(odd)] == [SCALE, EPS]


def test_a_formula_is_one_cause_whatever_it_comes_to_in_each_case():
    text = "scale is 1/sqrt(L) = {}, not {}"
    answers = fails("a/1", text.format(0.2236, 0.1768)), fails("a/2", text.format(0.3162, 0.1581), SCALE)
    assert _titles(*answers) == [(CAUSE, 2, "scale is 1/sqrt(L)")]
    assert _titles(answers[0]) == [(CAUSE, 1, text.format(0.2236, 0.1768))]
    plain = fails("a/3", "scale is 0.25, not 0.08839", text.format(0.25, 0.08839))
    assert _titles(*answers, plain) == [(CAUSE, 3, "scale is 1/sqrt(L)")], "a length that makes a plain number"
    assert len(_titles(answers[0], fails("a/2", "scale is 1/(L) = 0.1, not 0.1581"))) == 2


def test_a_whole_number_that_is_one_off_is_one_cause_whatever_it_is_in_each_case():
    off = [
        fails("pad/1", "left is 4, not 3"),
        fails("pad/2", "left is 1, not 0"),
        fails("pad/3", "left is 9, not 3"),
    ]
    assert [g.title for g in groups(report(*off))] == ["left is 1 too large", "left is 9, not 3"]
    assert [g.title for g in groups(report(off[0]))] == ["left is 4, not 3"]
    alike = [fails(f"pad/{n}", "left is 4, not 3") for n in (1, 2)]
    assert [g.title for g in groups(report(*alike))] == ["left is 4, not 3"]


def test_what_is_measured_in_each_case_is_one_cause_told_as_a_range():
    grid = "computed in a smaller type: its values are all {} numbers, {} roundings (RMS) from the truth"
    answers = [fails(f"a/{n}", grid.format("float16", n)) for n in ("1.56", "12", "3.2")]
    assert _titles(*answers) == [(CAUSE, 3, grid.format("float16", "1.56..12"))]
    assert _titles(answers[0]) == [(CAUSE, 1, grid.format("float16", "1.56"))]
    assert len(_titles(*answers, fails("b/1", grid.format("bfloat16", "1.56")))) == 2, "another type"
    rows = [fails(f"r/{n}", f"each row has a factor of its own, {n} to 1.2: a statistic") for n in (1.01, 1.05)]
    assert _titles(*rows) == [(CAUSE, 2, "each row has a factor of its own, 1.01..1.05 to 1.2: a statistic")]
    fits = fails("a/1", "eps is 1e-05", "eps is 1e-12"), fails("a/2", "eps is 1e-04", "eps is 1e-12")
    assert _titles(*fits) == [(CAUSE, 2, "eps is 1e-12")], "a number that fits all cases is told"
    lanes = [fails(f"l/{n}", f"sums of lanes that the last of {n} do not fill are lost") for n in (4, 8)]
    assert len(_titles(*lanes)) == 2, "a number of the code, not of the case"


def test_a_case_that_a_cause_of_others_nearly_explains_stands_with_them():
    def near(share, times=1.0, cause=EPS, case="a/2"):
        return fails(case, nearest=Nearest(cause, times, share))

    both = [(CAUSE, 2, f"{EPS}; in 1 of them nearly all of the error")]
    assert _titles(fails("a/1", EPS), near(0.99)) == both
    for other in (near(0.9), near(0.99, times=0.01), near(0.99, cause=SCALE), near(0.99, case="b/2")):
        assert [(kind, n) for kind, n, _ in _titles(fails("a/1", EPS), other)] == [(CAUSE, 1), (UNEXPLAINED, 1)]


def test_what_whole_blocks_leave_is_one_cause_however_long_it_is_in_each_case():
    last = "nothing is computed: zeros, in the last {} along {}, after the last whole block of {}"
    flat = [last.format(n, "the flat data", b) for n, b in (("5 of 2541", "8"), ("4 of 420", "8, 16 or 32"))]
    rows = [
        last.format(n, axis, "16 or 32") for n, axis in (("1 of 33", "axis 2"), ("3 of 67", "axis 1 (channels)"))
    ]
    of = "nothing is computed: zeros, in {} after the last whole block of {}"
    assert _titles(*(fails(f"a/{i}", cause) for i, cause in enumerate(flat))) == [
        (CAUSE, 2, of.format("the flat data", 8))
    ]
    assert _titles(*(fails(f"a/{i}", cause) for i, cause in enumerate(rows))) == [
        (CAUSE, 2, of.format("the slices of an axis", "16 or 32"))
    ]
    assert _titles(fails("a/1", flat[0]), fails("a/2", rows[0])) == [(CAUSE, 1, flat[0]), (CAUSE, 1, rows[0])]


def test_the_last_slice_is_one_cause_however_long_the_axis_is():
    """Lengths of 5 and 33 leave as much after whole blocks of 4; a last row shows it only where all lengths do."""
    zeros = "nothing is computed: zeros, in {}".format
    five, more = "the last 1 of 5 along axis 2, after the last whole block of 4", "the last 1 of 33 along axis 1"
    rows = (
        "items from 1 on of axis 0 (batch) and the last 1 of 20 along axis 1",
        "items from 1 on of axis 0 (batch), the last 1 of 3 along axis 1 and the last 1 of 9 along axis 2, after "
        "the last whole block of 4 or 8",
    )
    each = [five, "the last 1 of 12 along axis 2", more, *rows]
    assert _titles(*(fails(f"a/{i}", zeros(text)) for i, text in enumerate(each))) == [
        (CAUSE, 5, zeros("the last slice of an axis"))
    ]
    blocks = [five, "the last 2 of 14 along axis 2, after the last whole block of 4"]
    assert _titles(*(fails(f"a/{i}", zeros(text)) for i, text in enumerate(blocks))) == [
        (CAUSE, 2, zeros("the slices of an axis after the last whole block of 4"))
    ]
    assert _titles(fails("a/1", zeros(more))) == [(CAUSE, 1, zeros(more))]
    batch = "items from 1 on of axis 0 (batch)"
    assert len(_titles(fails("a/1", zeros(batch)), fails("a/2", zeros(more)))) == 2


def test_an_element_of_each_case_is_no_range():
    nan = [fails(f"gelu/{n}", looks=(f"NaN in element [{n}, 38], cause unknown",)) for n in (1, 16)]
    assert _titles(*nan) == [(UNEXPLAINED, 2, "gelu: unexplained; NaN in an element of each, cause unknown")]
    assert "element [1, 38]" in _titles(nan[0])[0][2]


def test_a_waived_group_keeps_its_cause():
    waiver = Waiver("", "issue 9", datetime.date(2027, 3, 31), cases="a/*", cause="*")
    failing = fails("a/1", EPS)
    _, line = waive([waiver], failing, datetime.date(2026, 11, 27))
    waived = msgspec.structs.replace(failing, status=verdict.WAIVED, reason=f"{failing.reason}; {line}")
    assert _titles(waived) == [(WAIVED, 1, f"the case waived until 2027-03-31: issue 9 ({EPS})")]


def test_engines_stand_apart():
    found = groups(report(fails("a/1", EPS), fails("a/1", EPS, engine="torch")))
    assert [(group.engine, len(group.results)) for group in found] == [("ggml", 1), ("torch", 1)]


def test_what_nothing_explains_stands_by_operation_and_looks():
    tail = "the error is only in the last {} of 77 along axis 1"
    by_looks = [fails(f"conv2d/{n}", looks=(tail.format(n),)) for n in (3, 7)]
    assert _titles(*by_looks) == [(UNEXPLAINED, 2, "conv2d: unexplained; " + tail.format("3..7"))]
    assert len(_titles(*by_looks, fails("linear/3", looks=(tail.format(3),)))) == 2
    near = "gelu: unexplained; the nearest known bug, 'tanh for erf', explains 83 %"
    assert _titles(fails("gelu/1", nearest=NEAR, looks=("y = 2 truth",))) == [(UNEXPLAINED, 1, near)]
    weak = msgspec.structs.replace(NEAR, share=0.79)
    assert _titles(fails("gelu/1", nearest=weak, criterion="rms")) == [(UNEXPLAINED, 1, "gelu: unexplained (rms)")]
    assert _titles(fails("gelu/1", criterion="rms")) == [(UNEXPLAINED, 1, "gelu: unexplained (rms)")]
    missing = fails("gelu/1", criterion="output", reason="output 'y' is missing")
    assert _titles(missing) == [(UNEXPLAINED, 1, "gelu: output 'y' is missing")]


def test_explained_before_unexplained_before_errors_before_waived():
    waived = result("a/5", verdict.WAIVED, 2.0, reason="y: x; the case waived until 2027-01-01: issue 7; later")
    found = _titles(
        waived,
        result("a/4", verdict.ERROR, reason="exit code 3"),
        fails("a/3"),
        result("a/2", verdict.DEVIATES, deviations=("x/eps", "x/gelu")),
        fails("a/1", EPS),
    )
    assert [kind for kind, _, _ in found] == [CAUSE, DEVIATION, UNEXPLAINED, ERROR, WAIVED]
    assert found[1][2] == "deviates by x/eps and x/gelu" and found[3][2] == "exit code 3"
    assert found[4][2] == "the case waived until 2027-01-01: issue 7; later"


def test_the_title_of_a_waived_group_is_what_the_waiver_says():
    day = datetime.date(2027, 1, 1)
    _, said = waive([Waiver("", "issue 7", day, cases="a/*")], Result("ggml", "a/1", "a", verdict.FAIL), day)
    assert _titles(result("a/1", verdict.WAIVED, reason=f"y: x; {said}"))[0][2] == said


def test_beside_a_baseline_the_heading_says_what_is_known():
    found = groups(report(fails("a/1", EPS), fails("a/2", EPS)))[0]
    assert (
        found.heading(Baseline("old", known=[("ggml", "a/1")]))
        == f"ggml, 2 cases, 1 known from the baseline: {EPS}"
    )
    both = Baseline("old", known=[("ggml", "a/1"), ("ggml", "a/2")])
    assert found.heading(both) == f"ggml, 2 cases, all known from the baseline: {EPS}"
    assert found.heading(Baseline("old", known=[("torch", "a/1")])) == f"ggml, 2 cases: {EPS}"


def test_a_list_of_cases_is_short():
    listed = [fails(f"a/{n}", margin=12.0) for n in range(5)]
    assert case_list(listed, 2) == "a/0 (margin 12), a/1 (margin 12) and 3 more"
    assert case_list(listed[:2], 2) == "a/0 (margin 12), a/1 (margin 12)"
