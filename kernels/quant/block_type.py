"""Describe a block format to its callers, and read scales and words from blocks."""

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

import numba
import numpy as np

from refsd.kernels._jit import kernel


class Importance(Enum):
    """Whether `quantize` uses an importance matrix: `quantize(x)`, or `quantize(x, importance=None)`."""

    UNUSED = "unused"
    OPTIONAL = "optional"
    REQUIRED = "required"


class BlockType(NamedTuple):
    """A block format.

    ggml_id:    the type's number in a GGUF file
    block:      elements in a block
    bytes:      bytes in a block
    dequantize: uint8 [n, bytes], out float32 [n, block] or None -> float32 [n, block]
    quantize:   float32 [n, block], importance or None -> uint8 [n, bytes], as in files
    quantize_activation: quantizes activations as ggml's CPU backend does; None if it never uses the type for them
    importance: whether `quantize` ignores, accepts or requires an importance: [width], one number a column of the
                matrix whose rows its blocks are of
    """

    name: str
    ggml_id: int
    block: int
    bytes: int
    dequantize: Callable[..., np.ndarray]
    quantize: Callable[..., np.ndarray]
    quantize_activation: Callable[[np.ndarray], np.ndarray] | None = None
    importance: Importance = Importance.UNUSED


def frozen(array: np.ndarray) -> np.ndarray:
    """Make an array contiguous and read-only, like a mapped file, so that Numba sees only one type."""
    array = np.ascontiguousarray(array).view()
    array.flags.writeable = False
    return array


def room(blocks: np.ndarray, block: int, out: np.ndarray | None) -> np.ndarray:
    """Return the array into which n blocks are expanded: `out`, or a new one. -> float32 [n, block], contiguous"""
    if out is None:
        return np.empty((len(blocks), block), np.float32)
    assert out.shape == (len(blocks), block) and out.dtype == np.float32 and out.flags.c_contiguous
    return out


def expander(block: int, *tables: np.ndarray, **how: bool) -> Callable[[Callable], Callable[..., np.ndarray]]:
    """Decorate the loop of a type's `dequantize`, (blocks, *tables, y) -> y, compiled as `kernel` does with `how`.

    The decorated function is (blocks, out=None) -> y; out: as in BlockType
    """

    def decorate(loop: Callable) -> Callable[..., np.ndarray]:
        expand = kernel(loop, **how)

        def dequantize(blocks: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
            return expand(frozen(blocks), *tables, room(blocks, block, out))

        return dequantize

    return decorate


@kernel(parallel=False)
def word16(blocks, b, at):
    """Read the little-endian uint16 at byte `at` of block b. -> uint32"""
    return np.uint32(blocks[b, at]) | np.uint32(blocks[b, at + 1]) << np.uint32(8)


@kernel(parallel=False)
def word32(blocks, b, at):
    """Read the little-endian uint32 at byte `at` of block b."""
    return word16(blocks, b, at) | word16(blocks, b, at + 2) << np.uint32(16)


@kernel(parallel=False)
def half_of(bits):
    """Convert the 16 bits of a float16. uint32 -> float32

    Shifted to float32's position, exponent and mantissa represent 2^-112 times the number, even for subnormals.
    """
    h = np.int32(bits)
    number = np.int32((h & np.int32(0x7FFF)) << np.int32(13)).view(np.float32) * np.float32(2.0**112)
    wide = np.float32(number).view(np.int32) | (h & np.int32(0x8000)) << np.int32(16)
    if h & np.int32(0x7C00) == np.int32(0x7C00):
        wide |= np.int32(0x7F800000)
    return np.int32(wide).view(np.float32)


@kernel(parallel=False)
def half(blocks, b, at):
    """Read the float16 at byte `at` of block b. -> float32"""
    return half_of(word16(blocks, b, at))


def halves(blocks: np.ndarray, offset: int) -> np.ndarray:
    """Read the float16 at a byte offset of each block. uint8 [n, bytes] -> float32 [n]"""
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
    """Store each block's scale as float16, which may overflow to infinity. float32 [n] -> uint8 [n, 2]"""
    with np.errstate(over="ignore"):
        return d.astype("<f2").view(np.uint8).reshape(-1, 2)


def read_back(d: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Compute the scales of groups as dequantize does: float16(d) times codes. [n], [n, k] -> float32 [n, k]"""
    with np.errstate(over="ignore", invalid="ignore"):
        return d.astype(np.float16).astype(np.float32)[:, None] * codes.astype(np.float32)
