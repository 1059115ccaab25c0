"""Counting what is not a number: NaN and infinity are the values whose exponent bits are all ones."""

from collections.abc import Iterator

import numpy as np

from refsd.golden.tensor import SCALAR_TYPES, StoredTensor
from refsd.kernels.quant import BLOCK_TYPES

CHUNK = 2**16  # elements looked at together: they stay in the cache
UNPACKED = 2**22  # elements dequantized together: worth starting the threads

# type -> its exponent bits
EXPONENTS = {
    "f16": np.uint16(0x7C00),
    "bf16": np.uint16(0x7F80),
    "f32": np.uint32(0x7F80_0000),
    "f64": np.uint64(0x7FF0_0000_0000_0000),
}


def not_finite(tensor: StoredTensor) -> int:
    """How many values of a tensor are NaN or infinite. Packed types are dequantized a chunk at a time."""
    if tensor.scaling is not None or tensor.type in ("f8_e4m3", "f8_e5m2"):
        return sum(_bad(chunk, "f32") for chunk in _chunks(tensor.values().reshape(-1), CHUNK))
    if tensor.type in EXPONENTS:
        return sum(_bad(chunk, tensor.type) for chunk in _chunks(tensor.data.reshape(-1), CHUNK))
    if tensor.type in SCALAR_TYPES:
        return 0
    block_type = BLOCK_TYPES[tensor.type]
    blocks = tensor.data.reshape(-1, block_type.bytes)
    unpacked = (block_type.dequantize(chunk) for chunk in _chunks(blocks, UNPACKED // block_type.block))
    return sum(_bad(values.reshape(-1), "f32") for values in unpacked)


def _chunks(array: np.ndarray, length: int) -> Iterator[np.ndarray]:
    return (array[start : start + length] for start in range(0, len(array), length))


def _bad(array: np.ndarray, type: str) -> int:
    ones = EXPONENTS[type]
    exponents = array.view(ones.dtype) & ones
    return int(np.count_nonzero(exponents == ones)) if exponents.max() == ones else 0
