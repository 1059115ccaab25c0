"""Block types against ggml's own C: what its CPU packs activations into, what its weights expand to.

$REFSD_GGML names a folder with libggml-base and libggml-cpu.
"""

import ctypes
import os
from pathlib import Path

import numpy as np
import pytest

from refsd.engines.ggml.library import library_files
from refsd.golden.recipe import SCALE_FIELDS, Recipe, realize
from refsd.kernels.quant import BLOCK_TYPES

pytestmark = pytest.mark.peer


@pytest.fixture(scope="module")
def libraries():
    loaded = [
        ctypes.CDLL(str(file), mode=ctypes.RTLD_GLOBAL) for file in library_files(Path(os.environ["REFSD_GGML"]))
    ]
    next(lib for lib in loaded if hasattr(lib, "ggml_cpu_init")).ggml_cpu_init()
    return loaded


def call(libraries, name: str, source: np.ndarray, target: np.ndarray, elements: int) -> None:
    function = next(getattr(lib, name) for lib in libraries if hasattr(lib, name))
    pointer = lambda array: array.ctypes.data_as(ctypes.c_void_p)
    function(pointer(source), pointer(target), ctypes.c_int64(elements))


@pytest.mark.parametrize("name", ["q8_0", "q8_1", "q8_k"])
@pytest.mark.parametrize("data", ["bell", "wide", "integers", "outliers"])
def test_activations_are_packed_bit_for_bit(libraries, name, data):
    block_type, function = BLOCK_TYPES[name], f"quantize_row_{name.replace('k', 'K')}"
    x = realize(Recipe((2048, block_type.block), "f32", data), "activations").data
    theirs = np.empty((len(x), block_type.bytes), np.uint8)
    call(libraries, function, x, theirs, x.size)
    assert (block_type.quantize_activation(x) == theirs).all()


@pytest.mark.parametrize("size", [1e-45, 1e-41, 1e-37])
def test_tiny_activations(libraries, size):
    """Their q8_1 has a sum of codes that overflowed."""
    x = (np.random.default_rng(1).standard_normal((8, 32)) * size).astype(np.float32)
    theirs = np.empty((len(x), 34), np.uint8)
    call(libraries, "quantize_row_q8_0", x, theirs, x.size)
    assert (BLOCK_TYPES["q8_0"].quantize_activation(x) == theirs).all()


@pytest.mark.parametrize("name", sorted(SCALE_FIELDS))
def test_blocks_expand_bit_for_bit(libraries, name):
    weight = realize(Recipe((64, 1024), name, exponent=-19), "weight")
    theirs = np.empty(weight.shape, np.float32)
    function = f"dequantize_row_{name.replace('k', 'K')}"
    if not any(hasattr(library, function) for library in libraries):
        assert name in ("nvfp4", "q1_0", "q2_0")  # younger than ggml 0.9.8
        return
    call(libraries, function, weight.data, theirs, theirs.size)
    assert weight.values().tobytes() == theirs.tobytes()
