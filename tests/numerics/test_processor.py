"""A machine's CPU features, from Linux's list or from LLVM's."""

import llvmlite.binding
import pytest

from refsd.numerics import processor


@pytest.fixture(autouse=True)
def fresh():
    processor.cpu_features.cache_clear()
    yield
    processor.cpu_features.cache_clear()


@pytest.mark.parametrize(
    "lines, features",
    [
        ({"flags": "fpu avx2 avx512_bf16 amx_bf16 la57"}, {"avx2", "avx512_bf16", "amx_bf16"}),
        ({"Features": "fp asimd evtstrm sve"}, {"asimd", "sve"}),
    ],
)
def test_features_that_linux_lists(monkeypatch, lines, features):
    monkeypatch.setattr(processor, "cpuinfo", lambda: lines)
    assert processor.cpu_features() == features


def test_features_that_llvm_lists(monkeypatch):
    monkeypatch.setattr(processor, "cpuinfo", dict)
    there = {"avx2": True, "avx512bf16": True, "amx-bf16": True, "amx-int8": False, "neon": True}
    monkeypatch.setattr(llvmlite.binding, "get_host_cpu_features", lambda: there)
    assert processor.cpu_features() == {"avx2", "avx512_bf16", "amx_bf16", "asimd"}


@pytest.mark.parametrize(("cores", "quota", "usable"), [(8, None, 8), (8, 2.5, 2), (8, 0.5, 1), (2, 16.0, 2)])
def test_a_container_limits_the_cores(monkeypatch, cores, quota, usable):
    monkeypatch.setattr(processor, "cores", lambda: cores)
    monkeypatch.setattr(processor, "quota", lambda: quota)
    assert processor.usable_cores() == usable
