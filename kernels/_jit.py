"""Compile kernels: the only module that calls numba.njit.

A kernel's machine code is cached on disk in a folder whose name is a hash of every kernel
source, Numba's version and the CPU. Numba's own cache only checks the file that defines a
function, so after an edit of a callee its callers would still run the old code; here any edit
starts a new folder. `_cache.py` reads and writes the files in it.
"""
# Numba does not export its settings and its dispatchers' types.
# pyright: reportPrivateImportUsage=false, reportAttributeAccessIssue=false, reportArgumentType=false
# pyright: reportReturnType=false, reportCallIssue=false

import functools
import hashlib
import os
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import llvmlite.binding
import numba
import numpy as np
import platformdirs
from numba.core.codegen import get_host_cpu_features
from numba.extending import overload

from refsd.kernels._cache import KernelCache, private_folder

F = TypeVar("F", bound=Callable[..., Any])

# Only explicit pranges run in parallel; array expressions are not parallelised, which compiles faster.
_PRANGE = {
    "prange": True,
    "comprehension": False,
    "reduction": False,
    "inplace_binop": False,
    "setitem": False,
    "numpy": False,
    "stencil": False,
    "fusion": False,
}

# With one thread prange is range: that compiles three times as fast, and a call takes 0.1 ms less.
_THREADED = numba.config.NUMBA_NUM_THREADS > 1

# The threads of Numba's OpenMP layer spin after each parallel region, which slows the BLAS calls
# between kernels; those of workqueue sleep. workqueue allows only one calling Python thread at a
# time: programs that call kernels from several threads must set NUMBA_THREADING_LAYER to omp or tbb.
if "NUMBA_THREADING_LAYER" not in os.environ:
    numba.config.THREADING_LAYER = "workqueue"

# LLVM halves the vectors of loops on Intel's AVX-512 for the sake of the clock of 2017. On a Xeon of 2024 an
# exponential took 0.28 ns with 256 bits, 0.20 ns with 512.
if numba.config.CPU_FEATURES is None and numba.config.CPU_NAME is None and "+avx512f" in get_host_cpu_features():
    numba.config.CPU_FEATURES = f"{get_host_cpu_features()},-prefer-256-bit"


@functools.cache
def cache_dir() -> Path | None:
    """Return the cache folder for exactly these kernel sources, on this machine, for this user.

    It is in NUMBA_CACHE_DIR, or else in the user's cache. If it cannot be written, or if others could put files
    into it (which would then be executed), warn once and return None.
    """
    of = numba.__version__, np.__version__, sys.implementation.cache_tag, llvmlite.binding.get_host_cpu_name()
    switches = numba.config.BOUNDSCHECK, numba.config.OPT, _THREADED
    key = hashlib.sha256(" ".join(map(str, (*of, *switches))).encode())
    root = Path(__file__).parent
    for source in sorted(root.rglob("*.py")):
        key.update(source.relative_to(root).as_posix().encode() + b"\0" + source.read_bytes())
    home = os.environ.get("NUMBA_CACHE_DIR") or platformdirs.user_cache_path("refsd") / "kernels"
    folder = Path(home) / key.hexdigest()[:16]
    try:
        if not os.environ.get("NUMBA_CACHE_DIR") and not folder.is_absolute():
            raise OSError(0, "this user has no home folder")
        private_folder(folder)
    except OSError as error:
        warnings.warn(
            f"kernels will be compiled anew at each start: {folder}: {error.strerror or error}; "
            "name a folder of your own in NUMBA_CACHE_DIR",
            stacklevel=2,
        )
        return None
    return folder


def kernel(
    fn: F | None = None,
    *,
    parallel: bool = True,
    inline: bool = True,
    contract: bool = False,
    reassociate: bool = False,
    slp: bool = False,
    loops: bool = True,
) -> F:
    """Compile `fn` at its first call, for the argument types of that call.

    fastmath is off: sums keep their written order, so that a result does not depend on the
    compiler's optimisations. Use prange only over independent outputs: the number of threads must
    not change a bit. Division by zero gives inf or nan, as in NumPy.

    parallel: False for functions called inside another kernel. They are inlined there, because
              only loops without calls are vectorised
    inline:   False for a long function with its own loops, so that its callers compile faster
    contract: let a * b + c round once (FMA). The bits then depend on the CPU: for the fast path only.
    slp:      also vectorise straight-line code: LLVM unrolls loops of fixed length 8 or 16 before vectorising
    loops:    False to stop LLVM vectorising the outer loop with gathers
    reassociate: let LLVM reorder sums for vector instructions. The bits then depend on the CPU.
    """
    if fn is None:
        options = {
            "parallel": parallel,
            "inline": inline,
            "contract": contract,
            "reassociate": reassociate,
            "slp": slp,
            "loops": loops,
        }
        return cast(F, functools.partial(kernel, **options))
    if numba.config.DISABLE_JIT:  # plain Python: suppress NumPy's warnings, which compiled code does not give
        return cast(F, np.errstate(all="ignore")(fn))
    fastmath = {name for name, wanted in (("contract", contract), ("reassoc", reassociate)) if wanted} or False
    compiled = numba.njit(
        parallel=_PRANGE if parallel and _THREADED else False,
        forceinline=inline and not parallel,
        nogil=True,
        no_cfunc_wrapper=True,  # for callers in C, of which there are none: a tenth of the time to compile
        error_model="numpy",
        fastmath=fastmath,
    )(fn)
    if slp or not loops:
        compiled.compile = _switched(compiled.compile, int(slp), int(loops))
    folder = cache_dir()
    if folder is not None:
        compiled._cache = KernelCache(fn, folder)
        compiled.compile = _once(compiled.compile, compiled._cache)
    compiled.compile = _counted(compiled.compile)
    return compiled


def _once(compile: Callable, cache: KernelCache) -> Callable:
    """Wrap `compile` so that of several processes one compiles, and the others load what it has stored."""

    def compile_one(signature):
        with cache.locked():
            return compile(signature)

    return compile_one


def compiled_for() -> float:
    """Return the CPU seconds that this process has compiled kernels for, or loaded them from the cache."""
    return _compiled_for


_compiled_for, _compiling = 0.0, False


def _counted(compile: Callable) -> Callable:
    """Wrap `compile` to count its CPU seconds in `compiled_for`; a kernel that compiles another is counted once."""

    def compile_one(signature):
        global _compiled_for, _compiling
        if _compiling:
            return compile(signature)
        _compiling, began = True, time.process_time()
        try:
            return compile(signature)
        finally:
            _compiling = False
            _compiled_for += time.process_time() - began

    return compile_one


def _switched(compile: Callable, slp: int, loops: int) -> Callable:
    """Wrap `compile` to set Numba's two global switches only while this kernel compiles."""

    def compile_one(signature):
        before = numba.config.SLP_VECTORIZE, numba.config.LOOP_VECTORIZE
        numba.config.SLP_VECTORIZE, numba.config.LOOP_VECTORIZE = slp, loops
        try:
            return compile(signature)
        finally:
            numba.config.SLP_VECTORIZE, numba.config.LOOP_VECTORIZE = before

    return compile_one


def by_dtype(single: F, double: F) -> F:
    """Combine two scalar kernels into one function: float32 calls `single`, any other number calls `double`.

    The choice is made when the caller is compiled, so that one loop serves both dtypes at full speed.
    Both must be kernels of one scalar, with parallel=False.
    """

    def choose(x):
        return single(x) if isinstance(x, np.float32) else double(x)

    if not numba.config.DISABLE_JIT:

        @overload(choose, inline="always")
        def _(x):
            chosen = single if x == numba.float32 else double
            return lambda x: chosen(x)

    return cast(F, choose)
