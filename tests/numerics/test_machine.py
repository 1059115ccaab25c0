"""Float64 is computed on one BLAS thread; libraries are found once, and again after an import; memory is kept."""

import os
import platform
import subprocess
import sys
from types import ModuleType

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from refsd.numerics import machine
from refsd.numerics.profiles import FLOAT32, FLOAT64


def blas_threads():
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


def test_float64_has_one_thread_and_gives_the_others_back():
    with threadpool_limits(2, "blas"):
        for _ in range(2):
            with machine.one_answer(FLOAT64):
                assert blas_threads() == {1}
            assert blas_threads() == {2}
        with machine.one_answer(FLOAT32):
            assert blas_threads() == {2}


def test_libraries_are_looked_for_again_after_an_import(monkeypatch):
    looked = []
    controller = machine.ThreadpoolController
    monkeypatch.setattr(machine, "ThreadpoolController", lambda: looked.append(1) or controller())
    machine._libraries.cache_clear()
    for _ in range(3):
        with machine.one_answer(FLOAT64):
            pass
    assert len(looked) == 1
    monkeypatch.setitem(sys.modules, "a_new_library", ModuleType("a_new_library"))
    with machine.one_answer(FLOAT64):
        pass
    assert len(looked) == 2


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no such switch")
@pytest.mark.parametrize(("set_by_user", "kept"), [({}, True), ({"MALLOC_TRIM_THRESHOLD_": "0"}, False)])
def test_freed_memory_is_kept_unless_the_user_says_how(set_by_user, kept):
    script = """
import resource, numpy as np
from refsd.numerics.machine import one_answer
from refsd.numerics.profiles import FLOAT32
with one_answer(FLOAT32):
    for _ in range(9):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        np.empty(3 << 20, np.uint8)[::4096] = 1
        np.empty(40 << 20, np.uint8)[::4096] = 1
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run(
        [sys.executable, "-P", "-c", script], env=environment | set_by_user, capture_output=True, text=True
    )
    assert (int(done.stdout) < 20) == kept, done.stdout + done.stderr
