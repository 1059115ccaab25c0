"""Jobs in processes of this machine: in order, whatever happens to a process; conform's report is that of one."""

import json
import os
import shlex
import sys
import time
from pathlib import Path

import process_jobs as jobs
import pytest
from typer.testing import CliRunner

from refsd.cli import app
from refsd.cluster.processes import Processes
from refsd.cluster.spread import Job
from refsd.cluster.workplace import Here
from refsd.engines.chosen import reference_engine
from refsd.numerics.errors import BadInput
from refsd.numerics.processor import usable_cores


@pytest.fixture(autouse=True)
def found(monkeypatch):
    """The processes find the jobs."""
    monkeypatch.setenv("PYTHONPATH", os.path.dirname(jobs.__file__))


def run(function, *arguments, count=2, crashed=lambda job: ["crashed"], **more):
    with Processes(count) as processes:
        return list(processes.run(function, (Job(of) for of in arguments), crashed, **more))


def test_outcomes_come_in_the_order_of_the_jobs():
    slow_first = [(0, 0.5), *((x, 0.0) for x in range(1, 40))]
    assert run(jobs.doubled, *slow_first) == [[2 * x] for x in range(40)]


def processes_of(*of):
    """The processes that ran jobs. of: (group, seconds) of each"""
    with Processes(2) as processes:
        of_two = (Job((x, seconds), group=group) for x, (group, seconds) in enumerate(of))
        return [pid for (pid,) in processes.run(jobs.of_this_process, of_two, list)]


def test_kin_run_in_one_process():
    pids = processes_of(*[("even", 0.0), ("odd", 0.0)] * 3)
    assert len(set(pids[::2])) == len(set(pids[1::2])) == 1 and pids[0] != pids[1]


def test_a_process_without_jobs_takes_the_last_of_another():
    pids = processes_of(("short", 0.0), *[("long", 0.3)] * 12)
    assert pids[0] == pids[-1] != pids[1]


def test_a_job_that_ends_its_process_is_found_out_and_the_others_are_done():
    assert run(jobs.deadly, *((x,) for x in range(8))) == [[x] if x != 3 else ["crashed"] for x in range(8)]


def test_of_a_job_that_ends_its_process_each_piece_runs_alone():
    pieces = lambda job: [Job((x,)) for x in (2, 3, 4)]
    assert run(jobs.deadly, (3,), split=pieces) == [[2, "crashed", 4]]


def test_bad_input_is_bad_input_and_another_error_comes_with_its_traceback():
    with pytest.raises(BadInput, match="x is below 0"):
        run(jobs.refused, (-1,))
    with pytest.raises(RuntimeError, match=r"ZeroDivisionError(.|\n)*in refused"):
        run(jobs.refused, (0,))


def test_what_cannot_be_handed_over_is_an_error_with_its_traceback():
    with pytest.raises(RuntimeError, match="Can't pickle"):
        run(jobs.not_for_others, (1,))
    assert run(jobs.unwritable, (1,)) == [[{"x": 1}]]


def test_what_still_runs_ends_with_the_block():
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt), Processes(2) as processes:
        for outcome in processes.run(jobs.doubled, iter([Job((1, 0.0)), Job((2, 60.0))]), list):
            assert outcome == [2]
            raise KeyboardInterrupt
    assert time.monotonic() - begun < 30


def test_kernels_share_the_threads_and_blas_keeps_its_own(monkeypatch):
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    with Processes(2) as processes:
        assert set(processes.on_every_worker(jobs.threads).values()) == {max(1, usable_cores() // 2)}
        assert set(processes.on_every_worker(jobs.environment, "OPENBLAS_NUM_THREADS").values()) == {""}


def results(folder, engines, globs, *more, code=0):
    cases = [word for glob in globs for word in ("--cases", glob)]
    arguments = ["conform", *engines, *cases, "--golden", "goldens", "--report", folder, *more]
    run = CliRunner().invoke(app, arguments)
    assert run.exit_code == code, run.output
    said = json.loads(Path(folder, "conform.json").read_text())
    own = ("seconds", "kept")  # of the run
    return [{k: v for k, v in result.items() if k not in own} for result in said["results"]]


@pytest.mark.jitted
def test_the_report_is_that_of_one_process(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    of = ["refsd:ggml-cpu", "refsd"], ["silu/*", "clip-l/*", "conv2d/f32/*"]
    assert results("three", *of, "--processes", "3") == results("one", *of, "--processes", "1")


@pytest.mark.jitted
@pytest.mark.parametrize("more", [(), ("--no-causes",)])
def test_failures_come_from_other_processes_as_from_this_one(tmp_path, monkeypatch, more):
    monkeypatch.chdir(tmp_path)
    program = Path(__file__).parents[3] / "examples" / "exec" / "engine.py"
    of = (
        [f"exec:{sys.executable} {shlex.quote(str(program))} --bug"],
        ["gelu_tanh/f32/bend*", "gelu_tanh/f32/wide*"],
    )
    two = results("two", *of, "--processes", "2", *more, code=1)
    assert two == results("one", *of, "--processes", "1", *more, code=1)
    assert {result["status"] for result in two} == {"fail"}


def test_processes_beside_a_cluster_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = CliRunner().invoke(app, ["conform", "refsd", "--processes", "2", "--dask", "local"])
    assert isinstance(run.exception, BadInput) and "the cluster's workers judge" in str(run.exception)


@pytest.mark.parametrize(
    ("arguments", "globs", "many"),
    [
        (["refsd:float32"], ["*"], True),
        (["refsd:float32"], ["silu/*"], False),
        (["refsd:float32", "exec:./engine.py"], ["*"], False),
        (["refsd:float32", "torch@cuda"], ["*"], False),
        (["refsd:float32"], ["*", "full/sd15/clip/*"], False),
    ],
)
def test_when_several_processes_judge(arguments, globs, many):
    from refsd.cases import select

    here = Here("goldens")
    here._arguments = arguments
    usual = here._usual_processes([reference_engine("float32")], select(*globs))
    assert usual == (min(usable_cores(), 8) if many else 1)
