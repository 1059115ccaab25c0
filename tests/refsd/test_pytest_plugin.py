"""The pytest plugin in an engine's own suite, as pytester runs it."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from refsd.commands.caches import kernel_folder

pytest_plugins = ["pytester"]
ROOT = Path(__file__).parents[2]
# pytester has a home of its own, where each process would compile every kernel again.
KERNELS = str(kernel_folder())

# An engine with a bug in its SiLU, and the suite that asks for cases.
ENGINE = """
import numpy as np

def run(op, inputs, **params):
    x = inputs["x"].astype(np.float64)
    if op == "silu":
        return (x / (1 + np.exp(-1.702 * x))).astype(np.float32)
    return (1 / (1 + np.exp(-x))).astype(np.float32)
"""
SUITE = """
import pytest
import my_engine

@pytest.mark.refsd_cases({mark})
def test_operations(refsd_case):
    y = my_engine.run(refsd_case.op, refsd_case.inputs, **refsd_case.params)
    refsd_case.check(y)
"""
BOTH = '"silu/f32/bend*", "sigmoid/f32/bend*"'


@pytest.fixture
def run(pytester, monkeypatch):
    """Run a suite with this mark, in a process of its own: Numba cannot be imported twice in one -> the result."""
    monkeypatch.setenv("REFSD_CACHE", str(pytester.path / "cache"))
    monkeypatch.setenv("NUMBA_CACHE_DIR", KERNELS)
    monkeypatch.delenv("REFSD_GOLDENS", raising=False)

    def run(mark: str, *arguments: str, suite: str = SUITE):
        pytester.makepyfile(my_engine=ENGINE, test_suite=suite.format(mark=mark))
        return pytester.runpytest_subprocess("-p", "refsd.pytest_plugin", "-p", "no:xdist", *arguments)

    return run


def test_each_case_is_a_test_and_a_wrong_one_fails_with_its_cause(run):
    result = run(BOTH, "-v")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*test_operations[[]silu/f32/bend-x33x77[]] FAILED*",
            "*test_operations[[]sigmoid/f32/bend-x33x77[]] PASSED*",
            "E * FAIL  silu/f32/bend-x33x77 under float32, at y",
            "E * the reference agrees if x sigmoid(1.702 x)",
        ]
    )
    # The traceback ends in the engine's test, not in refsd.
    assert not [line for line in result.outlines if "api.py" in line]


def test_cases_are_chosen_by_name_and_on_the_command_line(run):
    run('"s*/f32/bend*", exclude=["silu/*", "softmax/*"]').assert_outcomes(passed=1)
    run(BOTH, "--refsd-cases", "s*d/*").assert_outcomes(passed=1)


def test_numerics_come_from_the_mark_or_the_command_line(run):
    suite = """
import pytest
import my_engine

@pytest.mark.refsd_cases("sigmoid/f32/bend*")
def test_usual(refsd_case):
    assert refsd_case.judge(my_engine.run("sigmoid", refsd_case.inputs)).numerics == {usual}

@pytest.mark.refsd_cases("sigmoid/f32/bend*", numerics="torch-f16")
def test_marked(refsd_case):
    assert refsd_case.judge(my_engine.run("sigmoid", refsd_case.inputs)).numerics == {marked}
"""
    for option, usual, marked in (
        ((), "float32", "torch-f16"),
        (("--refsd-numerics", "ggml-cpu"), "ggml-cpu", "ggml-cpu"),
    ):
        text = suite.replace("{usual}", repr(usual)).replace("{marked}", repr(marked))
        run("", *option, suite=text).assert_outcomes(passed=2)


def test_a_known_failure_is_waived_until_it_passes(run):
    run(f'{BOTH}, xfail={{"silu/*": "issue 7"}}').assert_outcomes(passed=1, xfailed=1)
    healed = run(f'{BOTH}, xfail={{"sigmoid/*": "issue 7"}}')
    healed.assert_outcomes(failed=2)
    healed.stdout.fnmatch_lines(["*XPASS(strict)*issue 7*"])


@pytest.mark.parametrize(
    "mark, text",
    [
        ('@pytest.mark.refsd_cases("sylu/*")', "no case matches 'sylu/*'"),
        ('@pytest.mark.refsd_cases("silu/*", numeric="float32")', "takes numerics, exclude, xfail, and no numeric"),
        ("", "name the cases of refsd_case by globs: @pytest.mark.refsd_cases('conv2d/*')"),
    ],
)
def test_a_wrong_mark_is_one_line(run, mark, text):
    result = run("", suite=SUITE.replace("@pytest.mark.refsd_cases({mark})", mark))
    assert any("test_suite.py::test_operations: " in line and text in line for line in result.outlines)
    assert not [line for line in result.outlines if "Traceback" in line or "pytest_plugin.py" in line]


def test_a_suite_that_asks_for_nothing_loads_nothing(pytester):
    pytester.makepyfile(
        "import sys\ndef test(): assert not [m for m in sys.modules if m.startswith('refsd.golden')]"
    )
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "refsd.pytest_plugin", "-W", "error"]
    done = subprocess.run(command, cwd=pytester.path, capture_output=True, text=True)
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr


def test_the_entry_point_is_named_as_the_module(pytester):
    """So a conftest.py that lists the module, as docs/watch.md once said, does not load it twice."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"refsd.pytest_plugin": "refsd.pytest_plugin"}
    pytester.makeconftest("pytest_plugins = ['refsd.pytest_plugin']")
    pytester.makepyfile("def test(): pass")
    pytester.runpytest_subprocess("-p", "refsd.pytest_plugin").assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("module", "found"), [("refsd.pytest_plugin", "None"), ("refsd.cli", "20"), ("refsd; refsd.judge", "None")]
)
def test_only_the_command_line_sets_a_variable(module, found):
    script = f"import os, {module}; print(os.environ.get('OPENBLAS_THREAD_TIMEOUT'))"
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_THREAD_TIMEOUT"}
    done = subprocess.run([sys.executable, "-P", "-c", script], env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == found, done.stderr
