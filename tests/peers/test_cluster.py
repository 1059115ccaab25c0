"""On a Dask cluster: the report of one process, whatever happens to the workers."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from cluster_jobs import kill_at, twice_after
from typer.testing import CliRunner

from refsd.cli import app
from refsd.cluster.connect import connected
from refsd.cluster.spread import Job, NoWorkers, Spread

pytestmark = [
    pytest.mark.peer,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
# It answers every operation by SiLU, 1 % too large where the operation is silu. PIDS: a folder where it notes the
# processes that ask. DEADLY: it kills the process that asks it this one case.
_ENGINE = """
import json, os, signal, sys
import numpy as np
from safetensors.numpy import load_file, save_file

request = json.load(sys.stdin)
if request["request"] == "describe":
    said = {"protocol": 1, "name": "wrong", "version": "1", "ops": {"silu": {}, "quick_gelu": {}}}
    open(request["output"], "w").write(json.dumps(said))
    sys.exit()
x = load_file(request["inputs"])["x"]
supervisor = os.getppid()
worker = int(open(f"/proc/{supervisor}/stat").read().rpartition(")")[2].split()[1])
if "PIDS" in os.environ:
    open(os.path.join(os.environ["PIDS"], f"{worker}-{request['case']}"), "w")
if "DEADLY" in os.environ and request["op"] == "quick_gelu" and x.shape == (33, 77):
    os.kill(worker, signal.SIGKILL)
y = x / (1 + np.exp(-x * np.float32(1.702 if request["op"] == "quick_gelu" else 1)))
save_file({"y": (y * np.float32(1.01 if request["op"] == "silu" else 1)).astype(np.float32)}, request["output"])
"""
_GLOBS = ("--cases", "silu/f32/*", "--cases", "quick_gelu/f32/*", "--cases", "gelu/f32/*")


# Two workers, in processes of their own as a user has them; it ends with its stdin.
_CLUSTER = """
import sys
from refsd.cluster.connect import connected

if __name__ == "__main__":
    with connected("2") as client:
        print(client.scheduler.address, flush=True)
        sys.stdin.read()
"""


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    script = tmp_path_factory.mktemp("cluster") / "cluster.py"
    script.write_text(_CLUSTER)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    paths = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    with subprocess.Popen([sys.executable, "-P", script], text=True, env=paths, **pipes) as cluster:
        with connected(cluster.stdout.readline().strip()) as client:
            client.wait_for_workers(2)
            yield client
        cluster.stdin.close()


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "engine.py").write_text(_ENGINE)
    return tmp_path


def _address(client) -> str:
    return client.scheduler.address


def _engine(**environment) -> str:
    said = " ".join(f"{name}={value}" for name, value in environment.items())
    return f"exec:env {said} {sys.executable} {os.getcwd()}/engine.py"


def _conform(report, *more, code=1):
    done = CliRunner().invoke(app, ["conform", *more, *_GLOBS, "--golden", "goldens", "--report", report])
    assert done.exit_code == code, (done.output, done.exception)
    return json.loads(Path(report, "conform.json").read_text())


def _without_times(report):
    return report | {"results": [result | {"seconds": 0} for result in report["results"]]}


def test_the_report_is_that_of_one_process(client, folder):
    engines = [_engine(), "refsd:float32", "gguf-py"]
    alone = _conform("alone", *engines)
    spread = _conform("spread", *engines, "--dask", _address(client))
    assert _without_times(alone) == _without_times(spread)
    assert {"pass", "fail", "refused"} <= {result["status"] for result in alone["results"]}
    kept = [p.relative_to("alone") for p in Path("alone/failing").rglob("*") if p.is_file()]
    assert len(kept) > 3 and all(
        (folder / "alone" / p).read_bytes() == (folder / "spread" / p).read_bytes() for p in kept
    )


def test_goldens_are_those_of_one_process_and_need_no_shared_folder(client, folder, monkeypatch):
    for store, more in (("alone", ()), ("spread", ("--dask", _address(client)))):
        done = CliRunner().invoke(app, ["golden", "make", store, "--cases", "silu/*", *more])
        assert done.exit_code == 0, done.output
    files = [p.relative_to("alone") for p in Path("alone").rglob("*") if p.is_file()]
    assert len(files) > 3 and all(Path("alone", p).read_bytes() == Path("spread", p).read_bytes() for p in files)
    # Workers that cannot read the store get the truth with the question.
    monkeypatch.setattr("refsd.cluster.conform._digest", lambda answer: "of another golden")
    spread = _conform("far", "refsd:float32", "--dask", _address(client), code=0)
    assert {result["status"] for result in spread["results"]} == {"pass"}


def test_killed_workers_lose_nothing(client):
    """Each is killed while it computes; Dask's nanny starts it again."""
    jobs = [Job((0.2, number)) for number in range(40)]
    killed = []

    def kill():
        for _ in range(2):
            time.sleep(1.0)
            pids = client.run(os.getpid)
            address = next(address for address, keys in client.processing().items() if keys and address in pids)
            os.kill(pids[address], signal.SIGKILL)
            killed.append(address)

    killer = threading.Thread(target=kill)
    killer.start()
    results = [*Spread(client).run(twice_after, jobs, crashed=lambda job: ["crashed"])]
    killer.join()
    assert len(killed) == 2
    assert results == [[2 * number] for number in range(40)]


# A worker that is stopped while it computes answers nothing and does not end.
_STOPPED = """
import os, signal, threading, time
from cluster_jobs import twice_after
from refsd.cluster.connect import connected
from refsd.cluster.spread import Job, Spread

def stop(client):
    time.sleep(1)
    pids = client.run(os.getpid)
    os.kill(pids[next(address for address, keys in client.processing().items() if keys)], signal.SIGSTOP)

if __name__ == "__main__":
    with connected("2", silent="3 s") as client:
        threading.Thread(target=stop, args=[client]).start()
        jobs = [Job((0.2, number)) for number in range(30)]
        results = [*Spread(client).run(twice_after, jobs, crashed=lambda job: ["crashed"])]
        assert results == [[2 * number] for number in range(30)], results
"""


def test_a_stopped_worker_loses_nothing_and_does_not_hold_up_the_end(folder):
    (folder / "stopped.py").write_text(_STOPPED)
    paths = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    }
    subprocess.run([sys.executable, "-P", "stopped.py"], check=True, env=paths, timeout=100)


def test_a_job_that_ends_its_workers_is_crashed_and_no_other_is(client, folder):
    jobs = [Job((number, 7, str(folder))) for number in range(30)]
    before = {*folder.iterdir()}
    results = [*Spread(client).run(kill_at, jobs, crashed=lambda job: [f"{job.arguments[0]} crashed"])]
    assert results == [[number] if number != 7 else ["7 crashed"] for number in range(30)]
    killed = {*folder.iterdir()} - before
    assert 2 <= len(killed) <= 8, "not retried, or without a limit"


def test_a_case_that_ends_its_workers_is_an_error_and_the_others_are_judged(client):
    report = _conform("report", _engine(DEADLY=1), "--dask", _address(client))
    found = {result["case"]: result for result in report["results"] if result["engine"] == "wrong"}
    deadly = found.pop("quick_gelu/f32/bend-x33x77")
    assert deadly["status"] == "error" and deadly["reason"].startswith("crashed: the process of every worker")
    assert {result["op"]: result["status"] for result in found.values()} == {
        "silu": "fail",
        "quick_gelu": "pass",
        "gelu": "refused",
    }


def test_an_engine_runs_on_the_workers_that_declare_it(client, folder):
    (folder / "pids").mkdir()
    command = [
        sys.executable,
        "-m",
        "distributed.cli.dask_worker",
        _address(client),
        "--no-nanny",
        "--nthreads",
        "1",
    ]
    with open("worker.log", "w") as log:
        worker = subprocess.Popen([*command, "--resources", "wrong=1", "--no-dashboard"], stdout=log, stderr=log)
    try:
        client.wait_for_workers(3, timeout=120)
        _conform("report", _engine(PIDS=folder / "pids"), "--dask", _address(client))
        assert {path.name.partition("-")[0] for path in (folder / "pids").iterdir()} == {str(worker.pid)}
    finally:
        worker.terminate()
        worker.wait(20)


def test_where_no_worker_can_do_it_the_run_ends(client):
    client.wait_for_workers(2, timeout=120)
    jobs = [Job((0.0, 1)), Job((0.0, 2), {"vulkan": 1})]
    run = Spread(client, patience=2.0).run(twice_after, jobs, crashed=lambda job: [])
    assert next(run) == [2]
    with pytest.raises(NoWorkers, match="vulkan"):
        next(run)


def test_an_address_without_a_scheduler(monkeypatch):
    monkeypatch.setattr("refsd.cluster.connect._CONNECT", 0.5)
    done = CliRunner().invoke(app, ["golden", "make", "g", "--cases", "silu/*", "--dask", "tcp://127.0.0.1:1"])
    assert "no scheduler answers" in str(done.exception)
