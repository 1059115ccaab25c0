"""What the machine lends: threads and memory."""

import os
from pathlib import Path

from threadpoolctl import threadpool_limits

from refsd.numerics.profiles import Numerics


def one_answer(numerics: Numerics):
    """A context in which float64 is the same whatever the number of threads: OpenBLAS's sums move with it."""
    return threadpool_limits(1 if numerics.compute == "float64" else None, "blas")


def memory() -> int:
    """Bytes of memory that this process may hope for: the machine's, or its container's if that is less."""
    sizes = [2**33]
    if hasattr(os, "sysconf"):
        sizes = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.exists() and (text := limit.read_text().strip()).isdigit():
        sizes.append(int(text))
    return min(sizes)
