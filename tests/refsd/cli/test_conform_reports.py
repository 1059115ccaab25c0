"""`refsd conform` with a wrong engine: its report, kept outputs, --baseline, --last-failed, interrupts."""

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from datetime import date
from pathlib import Path
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from refsd.cases import CASES
from refsd.cli import app
from refsd.cli.ending import INTERRUPTED
from refsd.cluster import workplace
from refsd.commands.conform import _judge_all
from refsd.commands.interruption import interruptible
from refsd.corpus import versions
from refsd.golden import verdict
from refsd.golden.conform import Runner
from refsd.golden.report import Result
from refsd.golden.waivers import Waiver
from refsd.judges import judges
from refsd.numerics.errors import BadInput
from refsd.progress.steps import steps
from refsd.reports.stored import read

# Softplus for SiLU in one case, right in the other; SLEEP makes it slow.
_ENGINE = """
import json, os, sys, time
import numpy as np
from safetensors.numpy import load_file, save_file

request = json.load(sys.stdin)
if request["request"] == "describe":
    ops = {"silu": {}, "quick_gelu": {}}
    said = {"protocol": 1, "name": "wrong", "version": "1", "ops": ops}
    open(request["output"], "w").write(json.dumps(said))
    sys.exit()
if "ASKED" in os.environ:
    open(os.environ["ASKED"], "w")
time.sleep(float(os.environ.get("SLEEP", "0")))
x = load_file(request["inputs"])["x"]
slope = np.float32(1.702 if request["op"] == "quick_gelu" else 1)
y = x / (1 + np.exp(-slope * x))
if request["op"] in os.environ.get("WRONG", "silu"):
    y = y * np.float32(1.01)
save_file({"y": y.astype(np.float32)}, request["output"])
"""
_GLOBS = ["--cases", "silu/f32/wide*", "--cases", "quick_gelu/f32/wide*"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "engine.py").write_text(_ENGINE)
    return tmp_path


def _arguments(*more):
    return ["conform", f"exec:{sys.executable} {os.getcwd()}/engine.py", *more]


def _conform(*more):
    done = CliRunner().invoke(app, _arguments(*more))
    if isinstance(done.exception, BadInput):
        return 2, str(done.exception)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


def test_a_wrong_engine_is_reported_kept_judged_again_and_known(folder, monkeypatch):
    code, said = _conform(*_GLOBS)
    assert code == 1 and "does not conform: 2 answers of 1 engine, 1 not conforming\n" in said
    assert re.search(r"\n    next: refsd shrink .*engine.py' silu/f32/wide-", said)
    assert "wrong, 1 case: the result is multiplied by 1.01" in said
    assert said.endswith("report.md, conform.json, junit.xml; goldens: goldens\n") and (folder / "goldens").is_dir()
    pages = folder / "refsd-report"
    assert {path.name for path in pages.iterdir()} == {
        *("report.html", "report.md", "conform.json", "junit.xml", "failing")
    }
    page = (pages / "report.html").read_text()
    assert "<!doctype html>" in page and "data:image/png" in page and "multiplied by 1.01" in page
    first = read(pages / "conform.json")
    bad = next(r for r in first.results if r.status == verdict.FAIL)
    again = CliRunner().invoke(app, ["compare", str(pages / bad.kept / "found.safetensors"), bad.case])
    assert again.exit_code == 1 and "multiplied by 1.01" in " ".join(again.output.split())
    known = folder / "known.json"
    (pages / "conform.json").rename(known)

    code, said = _conform(*_GLOBS, "--baseline", str(known), "-o", "refsd-report")
    assert code == 0 and said.startswith(
        "conforms but for known failures: 2 answers of 1 engine, 1 not conforming: all known from "
    )
    assert CliRunner().invoke(app, ["diff", str(known), str(pages / "conform.json")]).exit_code == 0

    code, said = _conform("--last-failed")
    assert code == 1 and said.startswith("does not conform: 1 answer of 1 engine, 1 not conforming")
    monkeypatch.setenv("WRONG", "quick_gelu")
    code, said = _conform("--last-failed")
    assert code == 0 and not (pages / "failing").exists()
    assert _conform("--last-failed") == (0, "nothing failed in refsd-report/conform.json, so nothing is judged\n")

    code, said = _conform(*_GLOBS, "--baseline", str(known), "--keep", "tensors")
    assert code == 1 and "1 new, 0 known" in said and "fixed: wrong  silu/f32/" in said
    assert len(list((folder / "tensors").glob("wrong/*/found.safetensors"))) == 1
    assert CliRunner().invoke(app, ["diff", str(known), str(pages / "conform.json")]).exit_code == 1


def test_a_waiver_of_cases_passes_the_run_until_its_day(folder):
    waiver = '[[waiver]]\ncases = "silu/*"\nreason = "issue 8"\nexpires = {}\n'
    (folder / "refsd-waivers.toml").write_text(waiver.format("9999-12-31"))
    code, said = _conform("--cases", "silu/f32/wide*")
    assert code == 0 and "wrong, 1 case: the case waived until 9999-12-31: issue 8" in said
    (test,) = ElementTree.parse("refsd-report/junit.xml").iter("skipped")
    assert test.get("message", "").endswith("the case waived until 9999-12-31: issue 8")
    (folder / "refsd-waivers.toml").write_text(waiver.format("2020-01-01"))
    code, said = _conform("--cases", "silu/f32/wide*")
    assert code == 1 and "the waiver of the case expired on 2020-01-01" in said


def test_a_waiver_that_is_not_needed_is_told_in_the_terminal_and_in_the_summary(folder, monkeypatch):
    waiver = '[[waiver]]\ncases = "silu/f32/wide*"\nreason = "issue 8"\nexpires = 9999-12-31\n'
    (folder / "refsd-waivers.toml").write_text(waiver)
    line = "the waiver of silu/f32/wide* is no longer needed"
    assert line not in _conform(*_GLOBS)[1]
    monkeypatch.setenv("WRONG", "nothing")
    code, said = _conform(*_GLOBS)
    assert (code, line in said, line in (folder / "refsd-report" / "report.md").read_text()) == (0, True, True)


def test_a_waiver_of_another_machine_accepts_nothing(folder, monkeypatch):
    waiver = '[[waiver]]\ncases = "silu/*"\nreason = "issue 8"\nexpires = 9999-12-31\nwhen = "amx_bf16"\n'
    (folder / "refsd-waivers.toml").write_text(waiver)
    monkeypatch.setattr(workplace, "cpu_features", lambda: frozenset({"avx2", "amx_bf16"}))
    assert _conform("--cases", "silu/f32/wide*")[0] == 0
    monkeypatch.setattr(workplace, "cpu_features", lambda: frozenset({"avx2"}))
    code, said = _conform("--cases", "silu/f32/wide*")
    assert code == 1 and "issue 8" not in said


def test_bad_usage_says_what_is_wrong(folder):
    assert _conform("--last-failed")[0] == 2
    assert "leave out --cases" in _conform("--last-failed", "--cases", "silu/*")[1]
    (folder / "mine").mkdir()
    (folder / "mine" / "file").write_text("x")
    assert "not written by refsd" in _conform(*_GLOBS, "--keep", "mine")[1]
    (folder / "b.json").write_text("{}")
    assert "b.json: not a conformance report" in _conform(*_GLOBS, "--baseline", "b.json")[1]


def _interrupt(monkeypatch, answers):
    """As Ctrl-C once so many answers are judged."""
    done = []

    def count():
        done.append(1)
        if len(done) == answers:
            raise KeyboardInterrupt

    monkeypatch.setattr("refsd.commands.conform.trim_model_files", count)


def test_after_an_interrupt_what_was_judged_is_written(folder, monkeypatch):
    three = [*_GLOBS, "--cases", "silu/f32/bend*"]
    assert CliRunner().invoke(app, ["golden", "make", *three]).exit_code == 0
    _interrupt(monkeypatch, answers=2)
    code, said = _conform(*three)
    lines = said.splitlines()[:2]  # progress comes first on a busy machine
    assert code == INTERRUPTED and any(one.startswith("interrupted: 2 answers of 1 engine") for one in lines), said
    report = read(folder / "refsd-report" / "conform.json")
    assert report.partial == "2 of 3 answers judged" and len(report.results) == 2
    assert "Interrupted: " in (folder / "refsd-report" / "report.html").read_text()


def test_what_failed_and_was_not_judged_again_is_not_forgotten(folder, monkeypatch):
    _conform(*_GLOBS, "--cases", "silu/f32/bend*")
    _interrupt(monkeypatch, answers=1)
    monkeypatch.setenv("WRONG", "nothing")
    assert _conform("--last-failed")[0] == INTERRUPTED
    results = read(folder / "refsd-report" / "conform.json").results
    assert sorted(r.status for r in results) == [verdict.FAIL, verdict.PASS]


def test_sigterm_ends_a_run_as_ctrl_c_does(folder):
    CliRunner().invoke(app, ["golden", "make", *_GLOBS])
    environment = {**os.environ, "SLEEP": "2", "ASKED": str(folder / "asked")}
    command = [sys.executable, "-P", "-m", "refsd", *_arguments(*_GLOBS)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not (folder / "asked").exists():
        time.sleep(0.01)
    process.terminate()
    out, err = process.communicate(timeout=60)
    assert process.returncode == INTERRUPTED and err.endswith("refsd: interrupted\n"), err
    report = read(folder / "refsd-report" / "conform.json")
    assert report.partial == "0 of 2 answers judged" and report.results == []
    assert out.startswith("interrupted: ") and "next: " not in out and "took no case" not in out
    assert not [path for path in (folder / "refsd-report").iterdir() if path.name.startswith(".")]


def test_sigterm_interrupts_a_block():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), interruptible():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1)
    assert signal.getsignal(signal.SIGTERM) == before


def test_without_a_terminal_progress_is_a_line_now_and_then(capsys, monkeypatch):
    monkeypatch.setattr("refsd.progress.steps.EVERY", 0.0)
    with steps("conform", 2) as advance:
        advance("silu\x1b[2J")
        advance("gelu")
    assert capsys.readouterr().err == "conform: 1 of 2, silu\\x1b[2J\nconform: 2 of 2, gelu\n"


def test_the_json_of_a_report_names_what_it_found(folder):
    _conform("--cases", "silu/f32/wide*")
    (found,) = json.loads((folder / "refsd-report" / "conform.json").read_text())["results"]
    assert (found["causes"], found["place"]) == (["the result is multiplied by 1.01"], "y")
    assert found["kept"].startswith("failing/wrong/")


def test_a_profile_is_met_or_not(monkeypatch):
    monkeypatch.setattr(versions, "profile_names", lambda text: ["silu/f32/wide-x2x320", "gelu/f32/wide-x2x320"])
    monkeypatch.setenv("WRONG", "none")
    code, said = _conform("--profile", "2026.11/core")
    assert code == 1 and "wrong does not meet 2026.11/core: 1 of 2 cases is refused: gelu/f32/wide-x2x320" in said
    assert read(Path("refsd-report/conform.json")).profile == "2026.11/core"
    monkeypatch.setattr(versions, "profile_names", lambda text: ["silu/f32/wide-x2x320"])
    code, said = _conform("--profile", "2026.11/core")
    assert code == 0 and "wrong meets 2026.11/core: all of 1 case pass" in said
    code, said = _conform("--profile", "2026.11/core", *_GLOBS)
    assert code == 2 and "leave out --cases" in said


def test_the_parts_of_a_run_are_the_whole():
    judged = []
    for k in ("1/3", "2/3", "3/3"):
        _conform("--cases", "silu/*", "--shard", k)
        judged += [result.case for result in read(Path("refsd-report/conform.json")).results]
    assert sorted(judged) == sorted(name for name in CASES if name.startswith("silu/"))
    for wrong in (["0/3"], ["4/3"], ["3"], ["a/b"], ["1/2", "--profile", "2026.11/ops"]):
        code, said = _conform("--shard", *wrong)
        assert code == 2 and "--shard" in said


def test_a_program_that_hangs_is_given_up_after_the_time_that_the_user_allows(folder):
    Path("slow.py").write_text(
        "import json, sys, time\n"
        "request = json.loads(sys.stdin.readline())\n"
        "if request['request'] == 'run':\n"
        "    time.sleep(60)\n"
        "text = {'protocol': 1, 'name': 'slow', 'version': '1', 'ops': {'silu': {}}}\n"
        "json.dump(text, open(request['output'], 'w'))\n"
    )
    engine = f"exec:{sys.executable} slow.py"
    done = CliRunner().invoke(app, ["conform", engine, "--cases", "silu/f32/bend-x33x77", "--timeout", "1"])
    assert done.exit_code == 1 and "slow, 1 case: no answer after 1 s" in done.stdout
    beside = CliRunner().invoke(app, ["conform", engine, "--timeout", "1", "--processes", "2"])
    assert "--timeout beside --dask or --processes" in str(beside.exception)


class _Advance:
    """Write down finished steps and the beginnings of searches."""

    def __init__(self, said):
        self._said = said

    def __call__(self, name):
        self._said.append(name)

    def search(self):
        self._said.append("search")

    def show(self, text, hint=""):
        pass


def test_progress_tells_searches_from_answers(monkeypatch):
    said = []

    @contextlib.contextmanager
    def told(what, *_, **__):
        said.append(what)
        yield
        said.append("ended")

    monkeypatch.setattr("refsd.commands.conform.steps", lambda what, n: contextlib.nullcontext(_Advance(said)))
    monkeypatch.setattr("refsd.commands.conform.waiting", told)
    wide = "silu/f32/wide-x2x320", "quick_gelu/f32/wide-x2x320"
    answered = [[f"waiting for wrong, {case}", "ended"] for case in wide]
    searched = ["search", f"searching for the cause of wrong, {wide[0]}", "ended"]
    _conform(*_GLOBS)
    assert sorted([said[:6], said[6:]]) == sorted(
        [[*answered[0], *searched, f"wrong {wide[0]}"], [*answered[1], f"wrong {wide[1]}"]]
    )
    said.clear()
    again = shlex.join(["refsd", *_arguments("--cases", wide[0])])
    assert f"was not searched for; of one case: {again}\n" in _conform(*_GLOBS, "--no-causes")[1]
    assert "search" not in said


class _Workers:
    """A cluster that gives these results."""

    def __init__(self, *results):
        self._results = results
        self.of_every_machine = workplace.OnCluster(None, "goldens").of_every_machine

    def judge(self, runner, engines, cases, done):
        for result in self._results:
            done(result)
        return [*self._results]


def test_on_a_cluster_a_shared_cause_is_waived_by_no_waiver_of_one_cpu():
    known = Result("e", "silu/1", "silu", verdict.FAIL, causes=("eps",))
    place = _Workers(known, Result("e", "silu/2", "silu", verdict.FAIL, possible=("eps",)))
    waivers = [Waiver("", "x", date.max, cases="silu/2", when="amx_bf16")]
    for waiver, status in ((waivers[0], verdict.FAIL), (replace(waivers[0], when=""), verdict.WAIVED)):
        judging = Runner(judges(), lambda case: {}, [waiver])
        (_, second), _ = _judge_all(place, judging, [], [], None, {("e", "silu/1")})  # type: ignore[arg-type]
        assert (second.causes, second.status) == (("eps",), status)


def test_progress_counts_an_answer_that_cannot_be_judged(monkeypatch):
    advanced = []

    @contextlib.contextmanager
    def counting(what, total):
        assert total == 2
        yield advanced.append

    monkeypatch.setattr("refsd.commands.conform.steps", counting)
    cases = ("silu/1", "silu/2", "gelu/1")
    place = _Workers(*(Result("e", case, "silu", verdict.REFUSED) for case in cases))
    asked = {("e", "silu/1"), ("e", "silu/2")}
    _judge_all(place, Runner(judges(), lambda case: {}), [], [], None, asked)  # type: ignore[arg-type]
    assert advanced == ["e silu/1", "e silu/2"]


def test_progress_counts_what_an_engine_is_asked(folder, monkeypatch):
    totals = []

    @contextlib.contextmanager
    def counting(what, total):
        totals.append(total)
        yield _Advance(totals)

    monkeypatch.setattr("refsd.commands.conform.steps", counting)
    assert CliRunner().invoke(app, ["conform", "refsd", "gguf-py", "--cases", "silu/*"]).exit_code == 1
    assert totals[0] == len(totals) - 1 == 3
