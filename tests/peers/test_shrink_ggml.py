"""The C++ programs of `refsd shrink`, compiled against ggml's headers and run."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from injection import Bug, Injected

from refsd.cases import CASES
from refsd.engines.ggml.ops import BUILDERS, DIRECT_BUILDERS, FLASH_BUILDERS
from refsd.numerics.profiles import FLOAT32, GGML_CPU_FLASH
from refsd.shrinking import folder, ggml_program
from refsd.shrinking.failure import ask, runner_of
from refsd.shrinking.shrink import shrink

pytestmark = pytest.mark.peer

TABLES = {"ggml": BUILDERS, "ggml-direct": DIRECT_BUILDERS, "ggml-flash": FLASH_BUILDERS}
OPS = [(engine, op) for engine, table in TABLES.items() for op in table]
FASTEST = ("silu", "im2col", "conv2d", "linear", "upsample_nearest", "avg_pool2d")


@pytest.fixture(scope="module")
def build():
    """Source -> the program, built against the libraries of $REFSD_GGML and the headers beside them."""
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    libraries = Path(os.environ["REFSD_GGML"])
    headers = next((libraries.parents[1] / "sdcpp").rglob("ggml/include/ggml.h")).parent
    assert compiler, "no C++ compiler on the PATH"

    def compiled(source: Path) -> Path:
        program = source.with_suffix("")
        flags = ["-std=c++17", "-O0", "-Wall", "-Wextra", "-Werror", "-I", str(headers)]
        libs = ["-L", str(libraries), f"-Wl,-rpath,{libraries}", "-lggml", "-lggml-cpu", "-lggml-base"]
        done = subprocess.run(
            [compiler, *flags, str(source), *libs, "-o", str(program)], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return program

    return compiled


def smallest(case_name: str, bug: Bug, numerics=FLOAT32):
    engine, runner = Injected(bug, numerics, None), runner_of()
    result = ask(runner, engine, CASES[case_name])
    return shrink(lambda case: ask(runner, engine, case), CASES[case_name], result, 20.0), engine


@pytest.mark.parametrize(("engine", "op"), [pair for pair in OPS if pair[0] != "ggml" or pair[1] in FASTEST])
def test_a_program_compiles_and_finds_ggml_right(engine, op, build, tmp_path):
    """Other operations are of the same few lines; a slow test has them all."""
    _compiles(engine, op, build, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "op"), OPS)
def test_every_operation_compiles(engine, op, build, tmp_path):
    _compiles(engine, op, build, tmp_path)


def _compiles(engine, op, build, tmp_path):
    names = [name for name, case in CASES.items() if case.op == op and "masked" not in name]
    numerics = GGML_CPU_FLASH if engine == "ggml-flash" else FLOAT32
    found, _ = smallest(names[0], Bug(answer=lambda case, inputs, y: {"y": -3 * y["y"] + 1}), numerics)
    answered = []
    reference = Injected(Bug(), numerics, None)
    ask(runner_of()._replace(measured=answered.append), reference, found.case)
    source = ggml_program.source(engine, answered[0].standard)
    assert source is not None
    path = tmp_path / "reproduce.cpp"
    path.write_text(source)
    done = subprocess.run([build(path)], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("ok"), done.stdout + done.stderr


def test_a_wrong_expectation_is_seen(build, tmp_path):
    """The same program, its expected answer that of another eps, says that ggml is wrong."""
    found, engine = smallest(
        "layer_norm/f32/tiny-x33x320", Bug(answer=lambda case, inputs, y: {"y": np.float32(0.9) * y["y"]})
    )
    folder.write(tmp_path / "out", found, engine, "ggml")
    source = (tmp_path / "out" / folder.CPP).read_text()
    path = tmp_path / "wrong.cpp"
    path.write_text(source.replace("1e-05f);", "1e-03f);", 1))
    assert path.read_text() != source
    done = subprocess.run([build(path)], capture_output=True, text=True)
    assert done.returncode == 1 and "WRONG" in done.stdout, done.stdout
    assert re.search(r"^y\[\d+\] = .*, expected ", done.stdout, re.M), done.stdout
