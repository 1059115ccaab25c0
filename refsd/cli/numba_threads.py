"""How many threads Numba has, which it reads once: when it is imported."""

import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path


def import_numba_for(cases: Sequence[str]) -> None:
    """Import Numba for one thread if no case can be of full size; leave the environment as it is.

    Small arrays take longer in two threads, and kernels for one thread compile in a third of the time.
    A program that has imported Numba, or set NUMBA_NUM_THREADS, before keeps its threads.
    """
    large = any(case.startswith("full/") or Path(case).exists() for case in cases)
    if large or "numba" in sys.modules or "NUMBA_NUM_THREADS" in os.environ:
        return
    # Not by the environment: Numba reads that again before it compiles, and would find the setting gone.
    importlib.import_module("numba").config.NUMBA_NUM_THREADS = 1
