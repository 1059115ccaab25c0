"""What a block format tells its callers, and how every format reads its input."""

from collections.abc import Callable
from typing import NamedTuple

import numba
import numpy as np

from refsd.kernels._jit import kernel


class BlockType(NamedTuple):
    """
    ggml_id:    the type's number in a GGUF file
    block:      elements in a block
    bytes:      bytes in a block
    dequantize: uint8 [n, bytes] -> float32 [n, block]
    quantize:   float32 [n, block] -> uint8 [n, bytes], as files are made; None where refsd cannot
    quantize_activation: the same as ggml's CPU does it to activations; None where it never does
    """

    name: str
    ggml_id: int
    block: int
    bytes: int
    dequantize: Callable[[np.ndarray], np.ndarray]
    quantize: Callable[[np.ndarray], np.ndarray] | None = None
    quantize_activation: Callable[[np.ndarray], np.ndarray] | None = None


def frozen(array: np.ndarray) -> np.ndarray:
    """The array as one Numba type whoever calls: contiguous and read-only, as a mapped file is."""
    array = np.ascontiguousarray(array).view()
    array.flags.writeable = False
    return array


def halves(blocks: np.ndarray, offset: int) -> np.ndarray:
    """The float16 at a byte offset of each block. uint8 [n, bytes] -> float32 [n]"""
    return _look_up(frozen(blocks), offset, _WIDENED)


with np.errstate(invalid="ignore"):
    _WIDENED = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)


@kernel
def _look_up(blocks, offset, widened):
    d = np.empty(blocks.shape[0], np.float32)
    for b in numba.prange(blocks.shape[0]):
        d[b] = widened[np.int64(blocks[b, offset]) | np.int64(blocks[b, offset + 1]) << 8]
    return d


def half_bytes(d: np.ndarray) -> np.ndarray:
    """A scale for each block as float16, infinite where it overflows. float32 [n] -> uint8 [n, 2]"""
    with np.errstate(over="ignore"):
        return d.astype("<f2").view(np.uint8).reshape(-1, 2)
