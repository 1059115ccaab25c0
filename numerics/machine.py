"""Control the threads and find the memory of this machine."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from refsd.numerics.profiles import Numerics


@contextlib.contextmanager
def one_answer(numerics: Numerics) -> Iterator[None]:
    """Make float64 results independent of the number of threads, which changes OpenBLAS's order of sums.

    What overflows in narrower numerics does so without a warning.
    """
    with (
        threadpool_limits(1 if numerics.compute == "float64" else None, "blas"),
        np.errstate(over="ignore", invalid="ignore"),
    ):
        yield


def memory() -> int:
    """Return the bytes of memory of the machine, or of its container if that has less."""
    sizes = [2**33]
    if hasattr(os, "sysconf"):
        sizes = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.exists() and (text := limit.read_text().strip()).isdigit():
        sizes.append(int(text))
    return min(sizes)
