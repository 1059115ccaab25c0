"""The C++ example, built by the compiler that is here."""

import datetime
import shutil
import subprocess
from pathlib import Path

import pytest

from refsd.cases import CASES
from refsd.engines.exec import engine as programs
from refsd.engines.reference import Reference
from refsd.golden import conform, verdict
from refsd.judges import judges
from refsd.numerics.profiles import FLOAT64

pytestmark = pytest.mark.peer

SOURCE = Path(__file__).parents[2] / "examples" / "exec" / "engine.cpp"


def test_the_cpp_example_conforms(tmp_path):
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    assert compiler, "no C++ compiler on the PATH"
    program = tmp_path / "engine"
    command = [compiler, "-O2", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-o", str(program), str(SOURCE)]
    subprocess.run(command, check=True)
    (found,) = programs.find(str(program))
    assert found.engine is not None, found.why_not
    run = conform.Runner(
        judges(),
        lambda case: Reference(FLOAT64).run(case, case.realize()),
        today=datetime.date(2026, 11, 20),
    )
    results = [r for r in conform.run(run, [found.engine], list(CASES.values())) if r.status != verdict.REFUSED]
    assert {r.op for r in results} == {"linear", "rms_norm", "silu"}
    assert [r.reason for r in results if r.status != verdict.PASS] == []
