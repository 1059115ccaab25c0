"""The one place that calls numba.njit.

A kernel's machine code is cached on disk under a folder whose name is a hash of every kernel
source, Numba's version and the CPU. Numba's own cache looks only at the file that holds a
function, so an edited callee would leave its callers serving yesterday's answer; here any edit
opens a new folder. `_cache.py` reads and writes the files in it.
"""
# Numba exports neither its settings nor its dispatchers' types.
# pyright: reportPrivateImportUsage=false, reportAttributeAccessIssue=false, reportArgumentType=false
# pyright: reportReturnType=false

import functools
import hashlib
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import llvmlite.binding
import numba
import numpy as np
import platformdirs
from numba.extending import overload

from refsd.kernels._cache import KernelCache, private_folder

F = TypeVar("F", bound=Callable[..., Any])

# Only a written prange is parallel: array expressions stay as they are, and compile sooner.
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

# Numba's OpenMP layer spins after each parallel region and starves BLAS, with which the kernels
# alternate. workqueue sleeps instead. It serves one Python thread at a time: a program that calls
# kernels from several sets NUMBA_THREADING_LAYER to omp or tbb.
if "NUMBA_THREADING_LAYER" not in os.environ:
    numba.config.THREADING_LAYER = "workqueue"


@functools.cache
def cache_dir() -> Path | None:
    """The folder that holds the compiled kernels of exactly these sources, on this machine, for this user.

    It stands in NUMBA_CACHE_DIR, else in the user's cache. None, with one warning that says what to do, where it
    cannot be written, or where others could put files: what is in it is run.
    """
    of = numba.__version__, np.__version__, sys.implementation.cache_tag, llvmlite.binding.get_host_cpu_name()
    switches = numba.config.BOUNDSCHECK, numba.config.OPT
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
    """Compile `fn` on its first call, for the types that it is called with.

    fastmath stays off: sums keep their written order, so that a result does not depend on the
    compiler's mood. Use prange over independent outputs only: the number of threads must not
    change a bit. Division by zero gives inf or nan, as in NumPy.

    parallel: False for what is called inside another kernel: it is inlined there, for only a loop
              without calls becomes vector instructions
    inline:   False for one that is long and holds the loops itself: its callers compile sooner
    contract: let a * b + c round once (FMA). It changes bits between CPUs: for the fast path only.
    slp:      vectorise straight code too: LLVM unrolls a loop of fixed length 8 or 16, and then sees no loop
    loops:    False to stop LLVM vectorising the outer loop with gathers
    reassociate: let a sum take the order that the CPU's vectors like. Changes bits as contract does.
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
    if numba.config.DISABLE_JIT:  # plain Python: NumPy would warn of what compiled code does in silence
        return cast(F, np.errstate(all="ignore")(fn))
    fastmath = {name for name, wanted in (("contract", contract), ("reassoc", reassociate)) if wanted} or False
    compiled = numba.njit(
        parallel=_PRANGE if parallel else False,
        forceinline=inline and not parallel,
        nogil=True,
        error_model="numpy",
        fastmath=fastmath,
    )(fn)
    folder = cache_dir()
    if folder is not None:
        compiled._cache = KernelCache(fn, folder)
    if slp or not loops:
        compiled.compile = _switched(compiled.compile, int(slp), int(loops))
    return compiled


def _switched(compile: Callable, slp: int, loops: int) -> Callable:
    """Numba has these two switches for all kernels only; here they are set while one compiles."""

    def compile_one(signature):
        before = numba.config.SLP_VECTORIZE, numba.config.LOOP_VECTORIZE
        numba.config.SLP_VECTORIZE, numba.config.LOOP_VECTORIZE = slp, loops
        try:
            return compile(signature)
        finally:
            numba.config.SLP_VECTORIZE, numba.config.LOOP_VECTORIZE = before

    return compile_one


def by_dtype(single: F, double: F) -> F:
    """One name for two kernels: a float32 goes to `single`, any other number to `double`.

    The choice is made while its caller is compiled, so that one loop serves both dtypes at full speed.
    Both are kernels of one scalar, with parallel=False.
    """

    def choose(x):
        return single(x) if isinstance(x, np.float32) else double(x)

    if not numba.config.DISABLE_JIT:

        @overload(choose, inline="always")
        def _(x):
            chosen = single if x == numba.float32 else double
            return lambda x: chosen(x)

    return cast(F, choose)
