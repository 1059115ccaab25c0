"""ggml's dot products by ctypes: its portable C, built without FMA, and the vector code of a usual build.

$REFSD_GGML_QUANTS names the first: a library of ggml-quants.c and ggml-cpu/quants.c, compiled with
-DGGML_CPU_GENERIC and -ffp-contract=off (.ci/peers builds it). The `_generic` symbols of a usual build are no
substitute: its compiler may round a product and a sum once, and GCC 12 with AVX-512 VNNI takes Q5_0's signed
weights for unsigned ones.
$REFSD_GGML_NEWEST is a folder with libggml-base and libggml-cpu.
"""

import ctypes
import os
from pathlib import Path

import numpy as np

from refsd.engines.ggml.library import library_files
from refsd.kernels.linear_quantized import DOTS
from refsd.kernels.quant import BLOCK_TYPES


def portable() -> ctypes.CDLL:
    library = ctypes.CDLL(os.environ["REFSD_GGML_QUANTS"])
    widened = (ctypes.c_float * 65536).in_dll(library, "ggml_table_f32_f16")
    with np.errstate(invalid="ignore"):
        np.frombuffer(widened, np.float32)[:] = np.arange(65536, dtype=np.uint16).view(np.float16)
    return library


def vectorised() -> ctypes.CDLL:
    files = library_files(Path(os.environ["REFSD_GGML_NEWEST"]))
    loaded = [ctypes.CDLL(str(file), ctypes.RTLD_GLOBAL) for file in files]
    library = next(one for one in loaded if hasattr(one, "ggml_vec_dot_q4_0_q8_0"))
    library.ggml_cpu_init()
    return library


def product(library: ctypes.CDLL, name: str, packed: np.ndarray, blocks: np.ndarray) -> np.ndarray:
    """Every row of `packed` with every row of `blocks`, by ggml_vec_dot_<name>_<activation>. -> float32 [M, O]"""
    kinds = [kind.replace("k", "K") if kind.endswith("_k") else kind for kind in (name, DOTS[name].activation)]
    function = getattr(library, f"ggml_vec_dot_{kinds[0]}_{kinds[1]}")
    pointer = lambda array: array.ctypes.data_as(ctypes.c_void_p)
    none = ctypes.c_size_t(0)
    y = np.full((len(packed), len(blocks)), np.nan, np.float32)
    K = blocks.shape[1] * BLOCK_TYPES[name].block
    for m, row in enumerate(packed):
        for o, column in enumerate(blocks):
            result = pointer(y[m, o:])
            function(ctypes.c_int(K), result, none, pointer(column), none, pointer(row), none, ctypes.c_int(1))
    return y
