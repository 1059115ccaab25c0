"""Counting what is not a number."""

import numpy as np

from refsd.golden.tensor import SCALAR_TYPES, StoredTensor
from refsd.kernels.quant import BLOCK_TYPES

CHUNK = 2**22  # elements looked at together


def not_finite(tensor: StoredTensor) -> int:
    """How many values of a tensor are NaN or infinite. Packed types are dequantized a chunk at a time."""
    if tensor.type in SCALAR_TYPES:
        if tensor.data.dtype.kind in "iub":
            return 0
        return sum(_bad(chunk) for chunk in _chunks(tensor.data.reshape(-1), CHUNK))
    block_type = BLOCK_TYPES[tensor.type]
    blocks = tensor.data.reshape(-1, block_type.bytes)
    return sum(_bad(block_type.dequantize(chunk)) for chunk in _chunks(blocks, CHUNK // block_type.block))


def _chunks(array: np.ndarray, length: int):
    return (array[start : start + length] for start in range(0, len(array), length))


def _bad(array: np.ndarray) -> int:
    return array.size - int(np.count_nonzero(np.isfinite(array)))
