"""Waivers that match no case, and those whose cases conform."""

import datetime

import pytest

from refsd.cases import CASES
from refsd.commands.waiver_notes import waiver_notes
from refsd.golden.report import Result
from refsd.golden.verdict import FAIL, PASS, REFUSED, WAIVED
from refsd.golden.waivers import Waiver

_SILU = [name for name in CASES if name.startswith("silu/")]


def notes(waiver, results, whole=False):
    made = Waiver(**{"reason": "issue 7", "expires": datetime.date(9999, 12, 31), **waiver})
    return waiver_notes([made], results, [r.case for r in results], whole)


def results(*statuses, cases=None, engine="js"):
    return [Result(engine, case, "silu", status) for case, status in zip(cases or _SILU, statuses, strict=False)]


@pytest.mark.parametrize(
    ("waiver", "line"),
    [
        ({"cases": "sillu/*"}, 'the waiver of sillu/* matches no case (did you mean "silu/*"?)'),
        ({"cases": "sillu/*", "engine": "x"}, "the waiver of sillu/* of engine x matches no case"),
        ({"cases": "gelu/*"}, None),  # there, though not in this run
        ({"cases": "graph/mine/*"}, None),
    ],
)
def test_a_waiver_of_no_case_is_told_where_cases_are_named(waiver, line):
    lines = notes(waiver, results(FAIL))
    assert lines == [] if line is None else len(lines) == 1 and lines[0].startswith(line)


def test_of_a_whole_run_an_engine_s_name_is_held_against_its_engines():
    assert notes({"cases": "silu/*", "engine": "jss"}, results(FAIL), whole=True) == [
        'the waiver of silu/* of engine jss matched no case (did you mean "js"?)'
    ]


@pytest.mark.parametrize(
    ("waiver", "judged", "needed"),
    [
        ({"cases": "silu/*"}, results(*[PASS] * len(_SILU)), False),
        ({"cases": "silu/*"}, results(*[PASS] * (len(_SILU) - 1), WAIVED), True),
        ({"cases": "silu/*"}, results(*[PASS] * (len(_SILU) - 1)), True),  # the last one was not judged
        ({"cases": "silu/*"}, results(*[PASS] * (len(_SILU) - 1), REFUSED), False),
        ({"cases": "silu/*"}, results(*[REFUSED] * len(_SILU)), True),
        ({"name": "sdcpp/gelu-tanh"}, results(*[PASS] * len(_SILU)), True),  # of all cases
        ({"cases": "silu/*", "engine": "ggml"}, results(*[PASS] * len(_SILU)), True),
    ],
)
def test_a_waiver_whose_cases_all_conform_is_not_needed(waiver, judged, needed):
    n = sum(r.status != REFUSED for r in judged)
    line = f"the waiver of silu/* is no longer needed: all {n} of its cases conform"
    assert notes(waiver, judged) == ([] if needed else [line])


def test_of_one_case():
    (line,) = notes({"cases": _SILU[0]}, results(PASS, FAIL))
    assert line == f"the waiver of {_SILU[0]} is no longer needed: its only case that was judged conforms"
