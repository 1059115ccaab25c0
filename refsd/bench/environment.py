"""Set up a contender's environment: a fixed number of threads, and no OpenBLAS preset for another CPU."""

import os
from collections.abc import Mapping

# Some machines set these for another CPU, which halves the speed of NumPy's matrix products. OpenBLAS reads them
# when it is loaded.
PRESETS = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")


# By default glibc returns a large freed array to the system, so each call faults its result's pages in again. That
# can cost as much as the arithmetic, and varies with memory fragmentation. Here freed memory is kept and reused.
_KEPT_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 34)}


def presets(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """List the OpenBLAS presets that are set. -> variable -> value"""
    return {name: environ[name] for name in PRESETS if name in environ}


def environment(threads: int, keep_presets=False, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return a new process's environment: no presets, `threads` threads for every library, freed memory kept."""
    kept = {name: value for name, value in environ.items() if keep_presets or name not in PRESETS}
    counts = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
    return {**kept, **_KEPT_MEMORY, **dict.fromkeys(counts, str(threads))}
