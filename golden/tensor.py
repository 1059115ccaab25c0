"""A tensor as a file stores it: a type's name, a shape, and the bytes."""

from typing import NamedTuple

import ml_dtypes
import numpy as np

from refsd.kernels.quant import BLOCK_TYPES

# Types whose elements stand alone. Block types are in refsd.kernels.quant.
SCALAR_TYPES: dict[str, np.dtype] = {
    "f64": np.dtype(np.float64),
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "i64": np.dtype(np.int64),
    "i32": np.dtype(np.int32),
    "i16": np.dtype(np.int16),
    "i8": np.dtype(np.int8),
    "u8": np.dtype(np.uint8),
    "bool": np.dtype(np.bool_),
}


class StoredTensor(NamedTuple):
    """A tensor in its storage type, not yet expanded.

    type:  a key of SCALAR_TYPES or of kernels.quant.BLOCK_TYPES ("q4_0", "q6_k", ...)
    shape: in torch's order, outermost first
    data:  scalar types: an array of `shape`; block types: uint8 [shape[0] * ... * row bytes], flat.
           It may be a read-only view of a mapped file.
    """

    type: str
    shape: tuple[int, ...]
    data: np.ndarray

    def values(self) -> np.ndarray:
        """The numbers: scalar types as they are (no copy), block types dequantized to float32. -> [shape]"""
        if self.type in SCALAR_TYPES:
            return self.data.reshape(self.shape)
        block_type = BLOCK_TYPES[self.type]
        blocks = self.data.reshape(-1, block_type.bytes)
        return block_type.dequantize(blocks).reshape(self.shape)


def stored(array: np.ndarray) -> StoredTensor:
    """Wrap an array of a scalar dtype. Raises KeyError for a dtype that no file stores."""
    array = np.asarray(array)
    return StoredTensor(_NAME_OF[array.dtype], array.shape, array)


_NAME_OF = {dtype: name for name, dtype in SCALAR_TYPES.items()}
