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


def without_avx512() -> dict[str, str]:
    """List the variables that keep Numba, OpenBLAS, NumPy, torch and oneDNN from AVX-512. -> variable -> value

    onnxruntime and a native sd-cli have no such switch.
    """
    import llvmlite.binding

    wide = ("avx512", "avx10", "amx", "evex512")
    features = llvmlite.binding.get_host_cpu_features()
    kept = {name: on and not name.startswith(wide) for name, on in features.items()}
    return {
        "NUMBA_CPU_NAME": "haswell",
        "NUMBA_CPU_FEATURES": ",".join(("+" if on else "-") + name for name, on in sorted(kept.items())),
        "OPENBLAS_CORETYPE": "Haswell",
        "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR",
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    }


def environment(
    threads: int, keep_presets=False, environ: Mapping[str, str] = os.environ, avx2=False
) -> dict[str, str]:
    """Return a new process's environment: no presets, `threads` threads for every library, freed memory kept.

    avx2: True also sets what `without_avx512` lists
    """
    kept = {name: value for name, value in environ.items() if keep_presets or name not in PRESETS}
    counts = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
    narrow = without_avx512() if avx2 else {}
    return {**kept, **_KEPT_MEMORY, **dict.fromkeys(counts, str(threads)), **narrow}
