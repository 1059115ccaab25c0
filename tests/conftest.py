"""Which tests run when, and how hard hypothesis tries."""

import os
import sys
import types
from pathlib import Path

import hypothesis
import pytest

# The first two ask the same questions every time; new ones are for a run that looks for them.
hypothesis.settings.register_profile("quick", max_examples=15, deadline=None, derandomize=True)
hypothesis.settings.register_profile("ci", max_examples=60, deadline=None, derandomize=True)
hypothesis.settings.register_profile("deep", max_examples=2000, deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

# As the command line does. Before NumPy is imported.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "20")

# One thread: those of BLAS, of torch and of Numba would only fight over the cores with other workers, and over
# arrays as small as these with each other: four times the CPU. Kernels for several threads are tested by
# tests/kernels/test_threads.py and beside the peers (.ci/run); -m leaves peers and notebooks a user's threads.
if "PYTEST_XDIST_WORKER" in os.environ or "-m" not in sys.argv:
    os.environ.setdefault("NUMBA_NUM_THREADS", "1")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# `from naive.group_norm import group_norm`: tests/ itself on sys.path would make tests/refsd shadow refsd.
_naive = types.ModuleType("naive", "The slow, obvious second opinions.")
_naive.__path__ = [str(Path(__file__).parent / "naive")]
sys.modules["naive"] = _naive

# Folders whose tests import what a plain installation lacks, and the marker that asks for them.
_MARKS = {"peers": "peer", "notebooks": "notebook", "website": "site"}
ASKED_FOR = {Path(__file__).parent / folder: mark for folder, mark in _MARKS.items()}
UNJITTED = os.environ.get("NUMBA_DISABLE_JIT") == "1"


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One worker a core for the plain suite and its folders; none for single files, for -m and for -s."""
    files = all(arg.split("::")[0].endswith(".py") for arg in config.args)
    alone = files or config.option.markexpr or config.option.capture == "no"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return 0 if alone or cores == 1 else cores


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """tests/peers imports peers at its top: a missing one fails there, and is never met elsewhere.

    -m with one marker reads only the files that name it: to collect all of them takes 20 seconds.
    """
    wanted = config.option.markexpr
    if wanted.isidentifier() and collection_path.name.startswith("test_"):
        return None if f"pytest.mark.{wanted}".encode() in collection_path.read_bytes() else True
    marker = ASKED_FOR.get(collection_path)
    return True if marker and marker not in wanted else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Full-size tests run when asked for by name (-m slow); unjitted runs leave out what would take hours."""
    out = [
        item
        for item in items
        if ("slow" in item.keywords and "slow" not in config.option.markexpr)
        or ("jitted" in item.keywords and UNJITTED)
    ]
    if out:
        config.hook.pytest_deselected(items=out)
        items[:] = [item for item in items if item not in out]
