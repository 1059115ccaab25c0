"""refsd doctor: what it finds of an environment, in how long; and completion in shells."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from refsd.cli import app
from refsd.commands import caches, doctor
from refsd.kernels._jit import cache_dir


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("REFSD_CACHE", str(tmp_path / "cache"))


def problems(environment) -> list[str]:
    """What `examine` says of these variables, and nothing of what is missing."""
    report = doctor.examine({"OPENBLAS_THREAD_TIMEOUT": "20", **environment})
    return [problem.what for problem in report.problems if problem.kind != "missing"]


@pytest.fixture
def quiet(tmp_path, monkeypatch):
    """A machine with AVX-512, two cores, a BLAS of two threads and one version of compiled kernels."""
    (tmp_path / "kernels" / ("0" * 16)).mkdir(parents=True)
    kernels = caches.CACHES["kernels"]._replace(place=lambda: tmp_path / "kernels")
    monkeypatch.setitem(caches.CACHES, "kernels", kernels)
    monkeypatch.setattr(doctor, "cores", lambda: 2)
    monkeypatch.setattr(doctor, "quota", lambda: None)
    monkeypatch.setattr(doctor, "cpu_features", lambda: frozenset({"avx2", "fma", "avx512f"}))
    pool = {"user_api": "blas", "internal_api": "openblas", "version": "0.3", "num_threads": 2}
    monkeypatch.setattr(doctor, "_pools", lambda: [pool])
    return pool


def test_a_good_installation_has_no_problem(quiet):
    assert problems({}) == []


@pytest.mark.parametrize(
    "variable, value, text",
    [
        ("OPENBLAS_CORETYPE", "Haswell", "leaves this processor's AVX-512 unused"),
        ("OPENBLAS_L2_SIZE", "512", "fixes the sizes of OpenBLAS's blocks"),
        ("OPENBLAS_THREAD_TIMEOUT", "26", "threads spin after a product"),
        ("NUMBA_DISABLE_JIT", "1", "a thousand times slower"),
        ("NUMBA_NUM_THREADS", "1", "kernels use 1 of 2 cores"),
        ("PYTHONDONTWRITEBYTECODE", "1", "parses each module again"),
        ("REFSD_GGML", "/nowhere/libggml.so", "there is no such file"),
    ],
)
def test_each_variable_that_slows_is_named(quiet, variable, value, text):
    (found,) = problems({variable: value})
    assert variable in found or "OpenBLAS's threads" in found
    assert text in found


def test_threads_and_containers(quiet, monkeypatch):
    quiet["num_threads"] = 1
    assert problems({}) == ["openblas uses 1 of 2 cores"]
    quiet["num_threads"] = 2
    monkeypatch.setattr(doctor, "quota", lambda: 1.0)
    assert problems({}) == ["openblas starts 2 threads where 1 cores are allowed"]


def test_kernels_that_were_never_compiled_or_often(quiet, tmp_path):
    (tmp_path / "kernels" / ("0" * 16)).rmdir()
    assert problems({}) == ["no kernel is compiled yet"]
    for n in range(4):
        (tmp_path / "kernels" / (str(n) * 16)).mkdir()
    assert "compiled kernels of 4 versions" in problems({})[0]


def test_engines_are_found_without_being_loaded(tmp_path):
    program = tmp_path / "sd-cli"
    program.touch()
    found = {
        name: where for name, where, _ in doctor.engines({"REFSD_SD_CLI": str(program), "REFSD_GGML": "/nowhere"})
    }
    assert found["sdcpp"] == str(program) and found["gguf-py"].startswith("gguf ")
    script = "import sys; from refsd.commands import doctor; doctor.examine(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, check=True)
    assert not {"numba", "torch", "gguf", "scipy", "refsd.engines"} & {*done.stdout.split()}


def test_it_ends_in_a_second_of_its_own_time():
    """The processor's time, the least of three runs, since other tests run beside it."""

    def spent() -> float:
        before = os.times()
        subprocess.run([sys.executable, "-P", "-m", "refsd", "doctor"], capture_output=True, check=True)
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system

    assert min(spent() for _ in range(3)) < 1.0


def test_it_speaks_json_and_the_problems_come_first():
    report = json.loads(CliRunner().invoke(app, ["doctor", "--json"]).stdout)
    assert {"versions", "processor", "threads and BLAS", "engines", "caches"} == {*report["sections"]}
    assert all(problem["advice"] for problem in report["problems"])
    text = CliRunner().invoke(app, ["doctor"]).stdout
    for problem in report["problems"]:
        assert text.index(problem["advice"]) < text.index("\nversions\n")


def test_the_folder_of_kernels_is_the_one_that_the_kernels_use():
    here = cache_dir()
    assert here is not None and caches.kernel_folder() == here.parent


def test_presets_are_timed():
    facts = list(doctor.time_blas({**os.environ, "OPENBLAS_CORETYPE": "Nehalem"}))
    assert len(facts) == 2 and all(float(fact.found.split()[0]) > 0 for fact in facts)


def test_a_shell_completes_commands(tmp_path):
    environment = {**os.environ, "HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    command = [str(Path(sys.executable).parent / "refsd")]
    asked = {"_REFSD_COMPLETE": "complete_bash", "COMP_WORDS": "refsd gol", "COMP_CWORD": "1"}
    done = subprocess.run(command, env=environment | asked, capture_output=True, text=True)
    assert done.stdout.split() == ["golden"], done.stdout + done.stderr
    words = {"COMP_WORDS": "refsd conform --cases silu/f32/b", "COMP_CWORD": "3"}
    done = subprocess.run(command, env=environment | asked | words, capture_output=True, text=True)
    assert done.stdout.split() == ["silu/f32/bend-x33x77"], done.stdout + done.stderr
    done = subprocess.run(
        [*command, "--install-completion", "bash"], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0 and ".bash_completions" in (tmp_path / ".bashrc").read_text()
