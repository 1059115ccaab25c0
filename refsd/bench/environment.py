"""The environment that a contender starts in: its threads are counted, and no preset slows NumPy's BLAS."""

import os
from collections.abc import Mapping

# Some machines preset them for another CPU, and halve NumPy's matrix products. OpenBLAS reads them as it loads.
PRESETS = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")


# glibc gives large arrays back as they are freed, and every call pays for its result's pages anew: as much as the
# arithmetic on them, and how much depends on how fragmented memory is. Kept, they cost no contender anything.
_KEPT_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 34)}


def presets(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What is preset. -> variable -> value"""
    return {name: environ[name] for name in PRESETS if name in environ}


def environment(threads: int, keep_presets=False, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """For a process that has not started: no presets, so many threads for every library, freed memory kept."""
    kept = {name: value for name, value in environ.items() if keep_presets or name not in PRESETS}
    counts = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
    return {**kept, **_KEPT_MEMORY, **dict.fromkeys(counts, str(threads))}
