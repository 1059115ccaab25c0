"""Control the threads and find the memory of this machine."""

import contextlib
import ctypes
import functools
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from threadpoolctl import ThreadpoolController

from refsd.numerics.profiles import Numerics


@contextlib.contextmanager
def one_answer(numerics: Numerics) -> Iterator[None]:
    """Make float64 results independent of the number of threads, which changes OpenBLAS's order of sums.

    What overflows in narrower numerics does so without a warning. Memory of freed arrays is kept for the next ones.
    """
    _keep_freed_memory()
    threads = one_blas_thread() if numerics.compute == "float64" else contextlib.nullcontext()
    with threads, np.errstate(over="ignore", invalid="ignore"):
        yield


@functools.cache
def _keep_freed_memory() -> None:
    """Let glibc reuse freed memory: given back, its pages are faulted in again, a twentieth of a UNet's step.

    MALLOC_* variables that are set stay in force; other systems' libraries have no such switch.
    """
    switch = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if switch is not None and not any(name.startswith("MALLOC_") for name in os.environ):
        no_array_by_itself, trim_threshold = -4, -1  # M_MMAP_MAX, M_TRIM_THRESHOLD
        switch(no_array_by_itself, 0)
        switch(trim_threshold, 2**31 - 1)


def one_blas_thread() -> contextlib.AbstractContextManager:
    """Multiply with one thread: beside another program two wait for each other, much longer than they multiply."""
    return _libraries(len(sys.modules)).limit(limits=1, user_api="blas")


@functools.lru_cache(maxsize=1)
def _libraries(modules: int) -> ThreadpoolController:
    """Find the libraries with threads of their own: a millisecond or two, so only after further imports.

    modules: how many are imported; the next one may bring a library
    """
    return ThreadpoolController()


def available() -> int:
    """Return the bytes of memory that a new process may take, within the limit of the container."""
    sizes = [memory()]
    lines = Path("/proc/meminfo").read_text().splitlines() if Path("/proc/meminfo").exists() else []
    sizes += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    group = Path("/sys/fs/cgroup")
    if (group / "memory.current").exists() and (text := (group / "memory.max").read_text().strip()).isdigit():
        counts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        held = int((group / "memory.current").read_text()) - int(counts.get("inactive_file", 0))
        sizes.append(int(text) - held)
    return max(0, min(sizes))


def memory() -> int:
    """Return the bytes of memory of the machine, or of its container if that has less."""
    sizes = [2**33]
    if hasattr(os, "sysconf"):
        sizes = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.exists() and (text := limit.read_text().strip()).isdigit():
        sizes.append(int(text))
    return min(sizes)
