"""Examine the installation: versions, processor, threads, BLAS, engines, caches; what is slow or missing.

`examine` imports NumPy, because BLAS comes with it, and nothing larger: it takes well under a second. `try_engines`
and `time_blas` load and measure.
"""

import importlib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from refsd import __version__
from refsd.commands.caches import CACHES, size
from refsd.golden.wording import how_to_install
from refsd.numerics.processor import CPU_FEATURES, cores, cpu_features, processor, quota

_PACKAGES = ("numpy", "numba", "llvmlite", "scipy", "safetensors", "gguf", "torch", "diffusers", "transformers")
# Sets of kernels that OpenBLAS has for processors without AVX-512.
_WITHOUT_AVX512 = ("prescott", "core2", "nehalem", "sandybridge", "haswell", "zen", "barcelona", "bulldozer")
_PRESETS = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "MKL_DEBUG_CPU_TYPE")
_LITTLE_DISK = 10e9  # bytes; recipe weights of a large model take as much


class Fact(msgspec.Struct, frozen=True):
    """A line of a section: what it is about, and what was found."""

    name: str
    found: str


class Problem(msgspec.Struct, frozen=True):
    """
    kind:   "slow", "missing" or "wrong"
    what:   the finding, in one line
    advice: what to do about it, in one line
    """

    kind: str
    what: str
    advice: str


class Report(msgspec.Struct):
    """sections: title -> facts; problems: the worst first"""

    sections: dict[str, list[Fact]]
    problems: list[Problem]


def examine(environment: Mapping[str, str] = os.environ) -> Report:
    """Examine the installation without loading an engine or compiling a kernel."""
    pools = _pools()
    sections = {
        "versions": _versions(),
        "processor": _processor(),
        "threads and BLAS": [*_threads(environment), *_blas(pools, environment)],
        "engines": [Fact(name, where or f"not found: {advice}") for name, where, advice in engines(environment)],
        "caches": _caches(),
    }
    problems = [*_wrong(environment), *_slow(pools, environment), *_missing(environment)]
    return Report(sections, problems)


def _versions() -> list[Fact]:
    facts = [Fact("refsd", __version__), Fact("python", f"{platform.python_version()}, {sys.executable}")]
    return facts + [Fact(name, version) for name in _PACKAGES if (version := _version(name))]


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _processor() -> list[Fact]:
    known = [feature for feature in CPU_FEATURES if feature in cpu_features()]
    facts = [Fact("model", f"{processor()}, {platform.machine()}, {platform.system()}")]
    facts += [Fact("instructions", ", ".join(known))] if known else []
    if hasattr(os, "sysconf") and "SC_AVPHYS_PAGES" in os.sysconf_names:
        total, free = (
            os.sysconf(name) * os.sysconf("SC_PAGE_SIZE") for name in ("SC_PHYS_PAGES", "SC_AVPHYS_PAGES")
        )
        facts.append(Fact("memory", f"{total / 2**30:.1f} GiB, {free / 2**30:.1f} GiB of it unused"))
    cards = [_model_of(card) for card in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))]
    return [*facts, *(Fact("GPU", card) for card in cards)]


def _model_of(card: Path) -> str:
    models = [line.partition(":")[2].strip() for line in card.read_text().splitlines() if line.startswith("Model")]
    return models[0] if models else "NVIDIA"


def _threads(environment: Mapping[str, str]) -> list[Fact]:
    limit = quota()
    settings = [
        f"{name}={environment[name]}"
        for name in ("NUMBA_NUM_THREADS", "NUMBA_THREADING_LAYER")
        if name in environment
    ]
    allowed = f", {limit:g} allowed by the container" if limit is not None else ""
    return [Fact("cores", f"{cores()}{allowed}"), Fact("Numba", ", ".join(settings) or f"{cores()} threads")]


def _pools() -> list[dict]:
    import threadpoolctl

    importlib.import_module("numpy")  # loads the BLAS that threadpoolctl finds
    return [pool for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"]


def _blas(pools: list[dict], environment: Mapping[str, str]) -> list[Fact]:
    facts = [
        Fact(
            "BLAS of NumPy",
            f"{pool['internal_api']} {pool['version']}, kernels for {pool.get('architecture', '?')}, "
            f"{pool['num_threads']} threads ({pool.get('threading_layer', '?')})",
        )
        for pool in pools
    ]
    preset = [f"{name}={environment[name]}" for name in _PRESETS if name in environment]
    return (facts or [Fact("BLAS of NumPy", "none that threadpoolctl knows")]) + (
        [Fact("preset", ", ".join(preset))] if preset else []
    )


def engines(environment: Mapping[str, str] = os.environ) -> Iterator[tuple[str, str, str]]:
    """Yield each engine: its name, where it is ("" if it is not found), and what installs it. None is loaded."""
    yield "gguf-py", _packaged("gguf"), "pip install gguf"
    yield "torch", _packaged("torch", "diffusers", "transformers"), how_to_install("torch")
    given = environment.get("REFSD_GGML", "")
    yield (
        "ggml",
        _given(given) or _packaged("ggml", "llama_cpp"),
        "set REFSD_GGML to libggml.so, or pip install ggml-python",
    )
    given = environment.get("REFSD_SD_CLI", "") or shutil.which("sd-cli") or ""
    yield "sdcpp", _given(given), "set REFSD_SD_CLI to sd-cli, or put it on the PATH"


def _packaged(*modules: str) -> str:
    names = {"llama_cpp": "llama-cpp-python", "ggml": "ggml-python"}
    found = [module for module in modules if importlib.util.find_spec(module) is not None]
    return ", ".join(
        f"{names.get(module, module)} {_version(names.get(module, module))}".strip() for module in found
    )


def _given(path: str) -> str:
    return path if path and Path(path).exists() else ""


def _caches() -> list[Fact]:
    facts = []
    for name, cache in CACHES.items():
        owned, place = list(cache.owned()), cache.place()
        total = sum(map(size, owned))
        where = f"in {place}" if place else "nowhere"
        facts.append(Fact(name, f"{total / 1e6:.1f} MB, {cache.what}, {where}"))
    place = _existing(CACHES["models"].place())
    free = shutil.disk_usage(place).free if place else 0
    return [*facts, Fact("disk", f"{free / 1e9:.1f} GB free for them")]


def _existing(path: Path | None) -> Path | None:
    """The nearest folder above that exists."""
    return next((one for one in (path, *path.parents) if one.exists()), None) if path else None


def _wrong(environment: Mapping[str, str]) -> Iterator[Problem]:
    place = _existing(CACHES["kernels"].place())
    if place is None or not os.access(place, os.W_OK):
        yield Problem(
            "wrong",
            f"compiled kernels cannot be kept: {place} cannot be written",
            "name a folder of your own in NUMBA_CACHE_DIR",
        )
    for variable in ("REFSD_GGML", "REFSD_SD_CLI"):
        path = environment.get(variable)
        if path and not Path(path).exists():
            yield Problem("wrong", f"{variable}={path}: there is no such file", f"correct or unset {variable}")


def _slow(pools: list[dict], environment: Mapping[str, str]) -> Iterator[Problem]:
    if environment.get("NUMBA_DISABLE_JIT") == "1":
        yield Problem("slow", "NUMBA_DISABLE_JIT=1: kernels run as Python, a thousand times slower", "unset it")
    if environment.get("NUMBA_BOUNDSCHECK") == "1":
        yield Problem("slow", "NUMBA_BOUNDSCHECK=1: every index is checked", "unset it")
    kernels = environment.get("OPENBLAS_CORETYPE", "")
    if kernels.lower() in _WITHOUT_AVX512 and "avx512f" in cpu_features():
        what = f"OPENBLAS_CORETYPE={kernels}: OpenBLAS leaves this processor's AVX-512 unused"
        yield Problem("slow", what, "unset it; `refsd doctor --full` measures the difference")
    elif kernels:
        what = f"OPENBLAS_CORETYPE={kernels} chooses the kernels, not the processor that is found"
        yield Problem("slow", what, "unset it unless it is meant; `refsd doctor --full` measures the difference")
    if "OPENBLAS_L2_SIZE" in environment:
        what = f"OPENBLAS_L2_SIZE={environment['OPENBLAS_L2_SIZE']} fixes the sizes of OpenBLAS's blocks"
        yield Problem("slow", what, "unset it unless it is meant; `refsd doctor --full` measures the difference")
    if any(pool["internal_api"] == "openblas" for pool in pools) and (
        environment.get("OPENBLAS_THREAD_TIMEOUT", "") != "20"
    ):
        what = "OpenBLAS's threads spin after a product, on the cores that kernels need"
        yield Problem("slow", what, "set OPENBLAS_THREAD_TIMEOUT=20 before NumPy is imported")
    allowed = min(cores(), quota() or cores())
    for pool in pools:
        if pool["num_threads"] < int(allowed):
            what = f"{pool['internal_api']} uses {pool['num_threads']} of {cores()} cores"
            yield Problem("slow", what, "unset OPENBLAS_NUM_THREADS, OMP_NUM_THREADS and MKL_NUM_THREADS")
        elif pool["num_threads"] > allowed:
            what = (
                f"{pool['internal_api']} starts {pool['num_threads']} threads where {allowed:g} cores are allowed"
            )
            yield Problem("slow", what, f"set OPENBLAS_NUM_THREADS={max(1, int(allowed))}")
    threads = environment.get("NUMBA_NUM_THREADS", "")
    if threads.isdigit() and int(threads) < int(allowed):
        yield Problem("slow", f"NUMBA_NUM_THREADS={threads}: kernels use {threads} of {cores()} cores", "unset it")
    if environment.get("PYTHONDONTWRITEBYTECODE"):
        yield Problem("slow", "PYTHONDONTWRITEBYTECODE: every start parses each module again", "unset it")
    kept = list(CACHES["kernels"].owned())
    if not kept:
        yield Problem(
            "slow", "no kernel is compiled yet", "the first run of each command compiles, for a minute or two"
        )
    elif len(kept) > 3:
        old = sum(map(size, kept)) / 1e6
        what = f"compiled kernels of {len(kept)} versions of refsd or Numba are kept, {old:.0f} MB"
        yield Problem("slow", what, "`refsd cache clear kernels` removes them; the next run compiles again")


def _missing(environment: Mapping[str, str]) -> Iterator[Problem]:
    place = _existing(CACHES["models"].place())
    if place and shutil.disk_usage(place).free < _LITTLE_DISK:
        free = shutil.disk_usage(place).free / 1e9
        what = (
            f"{free:.1f} GB of disk are left at {place}; weights of large models take {_LITTLE_DISK / 1e9:.0f} GB"
        )
        yield Problem("missing", what, "set REFSD_CACHE to a larger disk, or `refsd cache clear models`")
    for name, where, advice in engines(environment):
        if not where:
            yield Problem("missing", f"no {name} to judge or to compare with", advice)


def try_engines() -> Iterator[Fact]:
    """Load every engine as `refsd engines` does: its version and device, or why it cannot be judged."""
    from refsd.engines.inventory import inventory
    from refsd.weights.model_files import model_files

    for one in inventory(model_files):
        there = ", ".join(filter(None, (one.version, one.device)))
        yield Fact(one.argument, f"not judged: {one.missing}" if one.missing else there)


_PRODUCTS = """
import time, numpy as np
a = np.ones((768, 768), np.float32)
a @ a
best = 1e9
for _ in range(8):
    begun = time.perf_counter(); a @ a; best = min(best, time.perf_counter() - begun)
print(2 * 768**3 / best / 1e9)
"""


def time_blas(environment: Mapping[str, str] = os.environ) -> Iterator[Fact]:
    """Time a product of 768 x 768 floats in NumPy's BLAS as it is set, and without what the environment presets."""
    as_set = _gflops(environment)
    yield Fact("BLAS as it is set", f"{as_set:.0f} GFLOP/s in float32")
    if any(name in environment for name in _PRESETS):
        free = _gflops({name: value for name, value in environment.items() if name not in _PRESETS})
        named = ", ".join(name for name in _PRESETS if name in environment)
        yield Fact(f"without {named}", f"{free:.0f} GFLOP/s, {free / as_set:.2f} times as fast")


def _gflops(environment: Mapping[str, str]) -> float:
    command = [sys.executable, "-P", "-c", _PRODUCTS]
    return float(subprocess.run(command, env=dict(environment), capture_output=True, text=True, check=True).stdout)
