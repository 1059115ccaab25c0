"""The badge: its words and colour follow the report; a profile with a refused or lacking case is not met."""

from xml.etree import ElementTree

import pytest
from sample_reports import fails, report, result
from typer.testing import CliRunner

from refsd.cli import app
from refsd.corpus.met import unmet, verdict_of
from refsd.corpus.versions import profile_names
from refsd.golden import verdict
from refsd.numerics.errors import BadInput
from refsd.reports.badge import badge
from refsd.reports.stored import encode

PROFILE = "2026.11/sd15"
NAMES = profile_names(PROFILE)


def _words(svg: str) -> str:
    return ElementTree.fromstring(svg).get("aria-label", "")


@pytest.mark.parametrize(
    ("last", "words", "green"),
    [
        (result(NAMES[-1]), "met", True),
        (result(NAMES[-1], verdict.REFUSED), f"not met: {len(NAMES) - 1} of {len(NAMES)}", False),
        (result(NAMES[-1], verdict.WAIVED), f"not met: {len(NAMES) - 1} of {len(NAMES)}", False),
        (fails(NAMES[-1]), f"1 of {len(NAMES)} fail", False),
        (result("silu/f32/wide-x2x320"), f"not met: {len(NAMES) - 1} of {len(NAMES)}", False),
    ],
)
def test_a_profile_is_met_only_if_every_case_passes(last, words, green):
    of = report(*(result(name) for name in NAMES[:-1]), last, profile=PROFILE)
    svg = badge(of)
    assert _words(svg) == f"refsd {PROFILE}: {words}"
    assert ("#1a7f37" in svg) == green
    assert verdict_of(of.results, PROFILE, NAMES).startswith("meets" if green else "does not meet")
    assert bool(unmet(of, NAMES)) == (not green and last.status != verdict.FAIL)


def test_without_a_profile_the_cases_are_counted():
    assert _words(badge(report(result("a"), result("b", verdict.REFUSED)))) == "refsd: 1 conform"
    assert _words(badge(report(partial="1 of 9"))) == "refsd: interrupted"
    two = report(result("a", engine="x"), fails("a", engine="y"))
    assert _words(badge(two)) == "refsd: 1 of 2 fail" and _words(badge(two, "x")) == "refsd: 1 conform"


def test_nothing_is_loaded_and_nothing_escapes():
    of = report(result("a"), profile="2026.11/sd15")
    svg = badge(of)
    assert svg.count("http") == 1 and 'xmlns="http://www.w3.org/2000/svg"' in svg
    with pytest.raises(BadInput, match="no corpus"):
        badge(report(result("a"), profile="<script>/x"))


def test_the_command_writes_the_badge(tmp_path):
    (tmp_path / "r.json").write_bytes(encode(report(result("a"))))
    out = tmp_path / "b.svg"
    assert CliRunner().invoke(app, ["badge", str(tmp_path / "r.json"), "-o", str(out)]).exit_code == 0
    assert _words(out.read_text()) == "refsd: 1 conform"
    done = CliRunner().invoke(app, ["badge", str(tmp_path / "r.json"), "--engine", "none"])
    assert isinstance(done.exception, BadInput)
