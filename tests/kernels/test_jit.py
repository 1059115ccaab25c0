"""The compiled kernels as a program sees them: never stale, warm on the second start, harmless without a cache."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from refsd.kernels import _jit

CALLEE = """
from refsd.kernels._jit import kernel

@kernel(parallel=False)
def step(x):
    return x + {}
"""
CALLER = """
from refsd.kernels._jit import kernel
from refsd.kernels.callee import step

@kernel(parallel=False)
def run(x):
    return step(x) * 10
"""
PARALLEL = """
import numba
from refsd.kernels._jit import kernel

@kernel
def run():
    total = 0
    for i in numba.prange(10):
        total += i
    return total

parallel = bool(run.targetoptions["parallel"])
"""
# Prints the answer, cache hits, cache misses.
SCRIPT = """
from refsd.kernels.caller import run
answer = run(1)
stats = getattr(run, "stats", None)
print(answer, sum(stats.cache_hits.values()) if stats else -1, sum(stats.cache_misses.values()) if stats else -1)
"""


@pytest.fixture
def tree(tmp_path):
    """A small tree of kernels under the real _jit.py."""
    package = tmp_path / "tree" / "refsd" / "kernels"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").touch()
    for name in ("_jit.py", "_cache.py"):
        shutil.copy(Path(_jit.__file__).with_name(name), package)
    (package / "callee.py").write_text(CALLEE.format(1))
    (package / "caller.py").write_text(CALLER)
    return package


def start(tree, script=SCRIPT, **env):
    # Python knows a source by its second and its size: an edit within the second would run yesterday's bytecode.
    own = {"PYTHONPATH": str(tree.parent.parent), "PYTHONWARNINGS": "", "PYTHONDONTWRITEBYTECODE": "1"}
    # The tests themselves may run with bounds checks.
    env = {**os.environ, **own, "NUMBA_BOUNDSCHECK": "0", **env}
    done = subprocess.run([sys.executable, "-P", "-c", script], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done


def test_an_edited_callee_gives_its_callers_new_code_and_a_second_start_is_warm(tree, tmp_path):
    home = tmp_path / "cache"
    env = {"NUMBA_CACHE_DIR": str(home), "NUMBA_DISABLE_JIT": "0"}
    assert start(tree, **env).stdout.split() == ["20", "0", "1"]
    assert start(tree, **env).stdout.split() == ["20", "1", "0"]
    assert len(list(home.iterdir())) == 1
    (tree / "callee.py").write_text(CALLEE.format(2))
    assert start(tree, **env).stdout.split() == ["30", "0", "1"]
    assert len(list(home.iterdir())) == 2


def test_a_cache_that_cannot_be_written_costs_one_warning(tree, tmp_path):
    (tmp_path / "file").touch()
    done = start(tree, NUMBA_CACHE_DIR=str(tmp_path / "file"), NUMBA_DISABLE_JIT="0")
    assert done.stdout.split()[0] == "20"
    assert done.stderr.count("kernels will be compiled anew at each start") == 1
    assert not list(tree.rglob("*.nb?")), "Numba fell back on a cache that can go stale"


def test_a_cache_that_others_may_write_to_costs_one_warning_too(tree, tmp_path):
    home = tmp_path / "cache"
    home.mkdir()
    home.chmod(0o777)
    done = start(tree, NUMBA_CACHE_DIR=str(home), NUMBA_DISABLE_JIT="0")
    assert done.stdout.split() == ["20", "0", "1"]
    assert f"others may write to {home} (mode 777)" in done.stderr
    assert done.stderr.count("name a folder of your own in NUMBA_CACHE_DIR") == 1
    assert not [path for path in home.rglob("*") if path.is_file()]


def test_a_full_disk_costs_one_warning(tree, tmp_path):
    script = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
"""
    done = start(tree, script + SCRIPT, NUMBA_CACHE_DIR=str(tmp_path / "cache"), NUMBA_DISABLE_JIT="0")
    assert done.stdout.split()[0] == "20"
    assert done.stderr.count("compiled kernels cannot be kept in") == 1
    assert {path.suffix for path in (tmp_path / "cache").rglob("*") if path.is_file()} <= {".lock"}


def test_who_has_no_home_gets_no_folder_called_tilde(tree, tmp_path):
    script = f"""
import os, pathlib, platformdirs
os.chdir({str(tmp_path)!r})
platformdirs.user_cache_path = lambda app: pathlib.Path("~/.cache") / app
"""
    done = start(tree, script + SCRIPT, NUMBA_CACHE_DIR="", NUMBA_DISABLE_JIT="0")
    assert done.stdout.split()[0] == "20"
    assert "this user has no home folder" in done.stderr
    assert not (tmp_path / "~").exists()


def test_another_checkout_shares_the_cache_and_bounds_checks_do_not(tree, tmp_path):
    env = {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), "NUMBA_DISABLE_JIT": "0"}
    assert start(tree, **env).stdout.split() == ["20", "0", "1"]
    other = tmp_path / "other" / "refsd" / "kernels"
    shutil.copytree(tree.parent, other.parent)
    assert start(other, **env).stdout.split() == ["20", "1", "0"]
    assert start(tree, **env, NUMBA_BOUNDSCHECK="1").stdout.split() == ["20", "0", "1"]


def test_with_one_thread_prange_is_range_and_with_more_it_is_compiled_again(tree, tmp_path):
    (tree / "caller.py").write_text(PARALLEL)
    script = "from refsd.kernels.caller import run, parallel; print(run(), parallel)"
    env = {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), "NUMBA_DISABLE_JIT": "0"}
    assert start(tree, script, **env, NUMBA_NUM_THREADS="1").stdout.split() == ["45", "False"]
    assert start(tree, script, **env, NUMBA_NUM_THREADS="2").stdout.split() == ["45", "True"]
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_seconds_of_compiling_are_counted_once_and_those_of_computing_are_not(tree, tmp_path):
    """What a kernel that compiles another takes would be counted twice, and be more than the process has run."""
    script = (
        "import time; from refsd.kernels.caller import run; from refsd.kernels._jit import compiled_for; "
        "assert compiled_for() == 0; began = time.process_time(); run(1); first = compiled_for(); "
        "assert 0.6 * (time.process_time() - began) < first <= time.process_time() - began, first; "
        "[run(1) for _ in range(10)]; assert compiled_for() == first"
    )
    start(tree, script, NUMBA_CACHE_DIR=str(tmp_path / "cache"), NUMBA_DISABLE_JIT="0")


def test_kernels_run_as_plain_python_when_the_compiler_is_off(tree, tmp_path):
    done = start(tree, NUMBA_DISABLE_JIT="1", NUMBA_CACHE_DIR=str(tmp_path / "cache"))
    assert done.stdout.split() == ["20", "-1", "-1"]


@pytest.mark.parametrize(("asked", "layer"), [({}, "workqueue"), ({"NUMBA_THREADING_LAYER": "omp"}, "omp")])
def test_the_threading_layer_is_workqueue_unless_the_user_chose(tree, tmp_path, asked, layer):
    env = {k: "" for k in os.environ if k == "NUMBA_THREADING_LAYER"}
    script = "import os\n" + ("" if asked else "os.environ.pop('NUMBA_THREADING_LAYER', None)\n")
    script += "import refsd.kernels._jit, numba; print(numba.config.THREADING_LAYER)"
    done = start(tree, script, NUMBA_CACHE_DIR=str(tmp_path / "cache"), **{**env, **asked})
    assert done.stdout.split() == [layer]
