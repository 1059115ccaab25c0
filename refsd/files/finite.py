"""Count values that are NaN or infinite: those whose exponent bits are all ones."""

import math
from collections.abc import Iterator

import numpy as np

from refsd.golden.block_scales import SCALE_FIELDS
from refsd.kernels.quant import BLOCK_TYPES
from refsd.numerics.tensor import SCALAR_TYPES, StoredTensor

CHUNK = 2**16  # elements checked at a time, so that they stay in the cache
UNPACKED = 2**22  # elements dequantized at a time: enough work to start threads for

# Float type -> mask of its exponent bits.
EXPONENTS = {
    "f16": np.uint16(0x7C00),
    "bf16": np.uint16(0x7F80),
    "f32": np.uint32(0x7F80_0000),
    "f64": np.uint64(0x7FF0_0000_0000_0000),
}

# Block types whose values can be infinite only through float16 scales -> offsets of these scales' upper bytes.
HALVES = {
    type: [field.offset + 1 for field in fields]
    for type, fields in SCALE_FIELDS.items()
    if all(field.kind == "f16" for field in fields)
}


def not_finite(tensor: StoredTensor) -> int:
    """Count the values of a tensor that are NaN or infinite, dequantizing packed types a chunk at a time."""
    if tensor.type in ("f8_e4m3", "f8_e5m2") and (tensor.scaling is None or tensor.scaling.scale.size == 1):
        flat = tensor.data.reshape(-1)
        pieces = (
            StoredTensor(tensor.type, piece.shape, piece, tensor.scaling) for piece in _chunks(flat, UNPACKED)
        )
        return sum(_bad(chunk, "f32") for piece in pieces for chunk in _chunks(piece.values(), CHUNK))
    if tensor.scaling is not None:
        values = (part.values().reshape(-1) for part in _parts(tensor))
        return sum(_bad(chunk, "f32") for part in values for chunk in _chunks(part, CHUNK))
    if tensor.type in EXPONENTS:
        return sum(_bad(chunk, tensor.type) for chunk in _chunks(tensor.data.reshape(-1), CHUNK))
    if tensor.type in SCALAR_TYPES:
        return 0
    block_type = BLOCK_TYPES[tensor.type]
    blocks = tensor.data.reshape(-1, block_type.bytes)
    if tensor.type in HALVES and not any((blocks[:, at] & 0x7C == 0x7C).any() for at in HALVES[tensor.type]):
        return 0
    unpacked = (block_type.dequantize(chunk) for chunk in _chunks(blocks, UNPACKED // block_type.block))
    return sum(_bad(values.reshape(-1), "f32") for values in unpacked)


def _parts(tensor: StoredTensor) -> Iterator[StoredTensor]:
    """Yield the tensor in slices of rows, each of about UNPACKED elements."""
    if len(tensor.shape) < 2:
        return iter([tensor])
    step = max(1, UNPACKED // max(1, tensor.shape[-1]))
    rows = math.prod(tensor.shape[:-1])
    return (tensor.rows(slice(start, start + step)) for start in range(0, rows, step))


def _chunks(array: np.ndarray, length: int) -> Iterator[np.ndarray]:
    return (array[start : start + length] for start in range(0, len(array), length))


def _bad(array: np.ndarray, type: str) -> int:
    ones = EXPONENTS[type]
    exponents = array.view(ones.dtype) & ones
    return int(np.count_nonzero(exponents == ones)) if exponents.max() == ones else 0
