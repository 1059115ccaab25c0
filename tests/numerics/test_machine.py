"""Float64 is computed on one BLAS thread; the libraries are found once, and again after an import."""

import sys
from types import ModuleType

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
