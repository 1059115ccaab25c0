"""The environment that a contender starts in: its threads are counted, and no preset slows NumPy's BLAS."""

import os
from collections.abc import Mapping

# Some machines preset them for another CPU, and halve NumPy's matrix products. OpenBLAS reads them as it loads.
PRESETS = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")


def presets(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What is preset. -> variable -> value"""
    return {name: environ[name] for name in PRESETS if name in environ}


def environment(threads: int, keep_presets=False, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """For a process that has not started: the presets taken out, every library told the number of threads."""
    kept = {name: value for name, value in environ.items() if keep_presets or name not in PRESETS}
    counts = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
    return {**kept, **dict.fromkeys(counts, str(threads))}
