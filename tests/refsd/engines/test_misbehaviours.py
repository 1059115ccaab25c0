"""A hundred programs that misbehave: each gets its one line, the run goes on, and nothing stays running."""

import datetime
import functools
import re
import tempfile
import time
from xml.etree import ElementTree

import psutil
import pytest
from misbehaviours import ABSENT, MISBEHAVIOURS, PASS, program

from refsd.engines import supervised, work_folder
from refsd.engines.exec import engine as programs
from refsd.engines.exec.description import read_description
from refsd.engines.exec.program import Program
from refsd.engines.reference import Reference
from refsd.engines.supervised import Supervised
from refsd.golden import conform
from refsd.golden.case import Case
from refsd.golden.recipe import Recipe
from refsd.golden.report import Missing, Report
from refsd.judges import judges
from refsd.numerics.profiles import FLOAT64
from refsd.reports.html import html
from refsd.reports.junit import junit
from refsd.reports.markdown import markdown
from refsd.reports.stored import decode, encode

SILU = Case("silu", "silu", {"x": Recipe((2, 3))})
DESCRIPTION = b'{"protocol": 1, "name": "misbehaving", "version": "1", "ops": {"silu": {}}}'
PATIENT, HASTY = 30.0, 0.5  # seconds that a program gets
MIB = 1 << 20


@functools.cache
def truth(name):
    return Reference(FLOAT64).run(SILU, SILU.realize())


RUNNER = conform.Runner(judges(), lambda case: truth(case.name), today=datetime.date(2026, 11, 20))


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    """name -> (status, line, Result), with little room and time for each program; one supervisor serves all."""
    folder, scratch = tmp_path_factory.mktemp("programs"), tmp_path_factory.mktemp("scratch")
    shared = Supervised()

    def engine(command, timeout):
        run = Program(command, timeout, MIB, 8 * MIB)
        run._supervised = shared
        return programs.ExecEngine(run, read_description(DESCRIPTION), None)

    @functools.cache
    def run(name):
        wrong = MISBEHAVIOURS[name]
        command = program(name, folder)
        if wrong.outcome == ABSENT or wrong.describes:
            (found,) = programs.find(" ".join(command), timeout=PATIENT)
            if found.engine is None:
                return ABSENT, found.why_not.removeprefix(" ".join(command) + ": "), None
            judged = found.engine
        else:
            judged = engine(command, HASTY if wrong.hangs else PATIENT)
        (result,) = conform.run(RUNNER, [judged], [SILU])
        assert running(command[-1]) == []
        assert list(scratch.iterdir()) == []
        return result.status, result.reason, result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(scratch))
        patch.setattr(supervised, "_PATIENCE", 2.0)
        patch.setattr(work_folder, "_MAX_FILES", 3000)
        yield run


def running(path):
    """What still runs of a program after a moment."""
    for _ in range(50):
        found = [p.info for p in psutil.process_iter(["pid", "cmdline"]) if path in (p.info["cmdline"] or ())]
        if not found:
            break
        time.sleep(0.01)
    return found


@pytest.mark.parametrize("name", MISBEHAVIOURS)
def test_each_gets_its_line(outcome, name):
    status, line, _ = outcome(name)
    assert re.search(MISBEHAVIOURS[name].line, line), line
    assert re.fullmatch(MISBEHAVIOURS[name].outcome, status), (status, line)
    assert line.isprintable() and len(line) < 2500
    assert (line == "") == (status == PASS)


def test_the_whole_report_is_printable(outcome):
    ran = {name: outcome(name) for name in MISBEHAVIOURS}
    results = [result for _, _, result in ran.values() if result is not None]
    missing = [Missing("exec", line) for status, line, _ in ran.values() if status == ABSENT]
    report = Report("0", {"misbehaving": "1"}, missing, results)
    assert len(results) + len(missing) == len(MISBEHAVIOURS) >= 60

    page = markdown(report)
    assert all(line.isprintable() for line in page.split("\n"))
    assert "<script" not in page.replace("\\<script", "")
    assert all(line.isprintable() for line in html(report, {}).split("\n"))
    test_names = [test.get("name") for test in ElementTree.fromstring(junit(report)).iter("testcase")]
    assert len(test_names) == len(results)
    assert decode(encode(report)) == report
    assert all(line.isprintable() for line in encode(report).decode().split("\n"))
