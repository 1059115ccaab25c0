"""ONNX's element types: how a file stores them, and what the evaluation holds them as.

Floats of every width are held in the evaluation's dtype, float64 for the truth; 4-bit integers as 8-bit ones.
"""

from typing import NamedTuple

import ml_dtypes
import numpy as np
from onnx import TensorProto


class ElementType(NamedTuple):
    """
    name:   as ONNX writes it in lower case
    stored: dtype of its values; of one element where two or four share a byte
    held:   dtype in the evaluation; None: its float dtype
    bits:   in a file
    """

    name: str
    stored: np.dtype
    held: np.dtype | None
    bits: int

    @property
    def is_float(self) -> bool:
        return self.held is None


def _float(name: str, dtype, bits: int) -> ElementType:
    return ElementType(name, np.dtype(dtype), None, bits)


def _exact(name: str, stored, bits: int, held=None) -> ElementType:
    return ElementType(name, np.dtype(stored), np.dtype(held or stored), bits)


ELEMENT_TYPES: dict[int, ElementType] = {
    TensorProto.FLOAT: _float("float", np.float32, 32),
    TensorProto.DOUBLE: _float("double", np.float64, 64),
    TensorProto.FLOAT16: _float("float16", np.float16, 16),
    TensorProto.BFLOAT16: _float("bfloat16", ml_dtypes.bfloat16, 16),
    TensorProto.FLOAT8E4M3FN: _float("float8e4m3fn", ml_dtypes.float8_e4m3fn, 8),
    TensorProto.FLOAT8E4M3FNUZ: _float("float8e4m3fnuz", ml_dtypes.float8_e4m3fnuz, 8),
    TensorProto.FLOAT8E5M2: _float("float8e5m2", ml_dtypes.float8_e5m2, 8),
    TensorProto.FLOAT8E5M2FNUZ: _float("float8e5m2fnuz", ml_dtypes.float8_e5m2fnuz, 8),
    TensorProto.FLOAT8E8M0: _float("float8e8m0", ml_dtypes.float8_e8m0fnu, 8),
    TensorProto.FLOAT4E2M1: _float("float4e2m1", ml_dtypes.float4_e2m1fn, 4),
    TensorProto.BOOL: _exact("bool", np.bool_, 8),
    TensorProto.INT8: _exact("int8", np.int8, 8),
    TensorProto.INT16: _exact("int16", np.int16, 16),
    TensorProto.INT32: _exact("int32", np.int32, 32),
    TensorProto.INT64: _exact("int64", np.int64, 64),
    TensorProto.UINT8: _exact("uint8", np.uint8, 8),
    TensorProto.UINT16: _exact("uint16", np.uint16, 16),
    TensorProto.UINT32: _exact("uint32", np.uint32, 32),
    TensorProto.UINT64: _exact("uint64", np.uint64, 64),
    TensorProto.INT4: _exact("int4", ml_dtypes.int4, 4, np.int8),
    TensorProto.UINT4: _exact("uint4", ml_dtypes.uint4, 4, np.uint8),
    TensorProto.INT2: _exact("int2", ml_dtypes.int2, 2, np.int8),
    TensorProto.UINT2: _exact("uint2", ml_dtypes.uint2, 2, np.uint8),
}

# Rounding to these is a part of a graph's meaning even where casts are ignored: they are quantizations.
QUANTIZED = frozenset(number for number, kind in ELEMENT_TYPES.items() if kind.bits <= 8 and kind.name != "bool")
# The widths that a Cast does not round to: the evaluation stands for any precision at least as wide.
WIDE = frozenset({TensorProto.FLOAT, TensorProto.DOUBLE})

_OF_DTYPE = {kind.held: number for number, kind in ELEMENT_TYPES.items() if kind.held and kind.bits >= 8}


def number_of(dtype: np.dtype) -> int:
    """ONNX's number of the type that an integer or bool array of this dtype has; float32's for any float."""
    return _OF_DTYPE.get(dtype, TensorProto.FLOAT)


def unpacked(data: np.ndarray, bits: int, count: int) -> np.ndarray:
    """Split bytes into `count` fields of 2 or 4 bits, the lowest first. uint8 -> uint8"""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return ((data[:, None] >> shifts) & np.uint8(2**bits - 1)).reshape(-1)[:count]


def rounded(x: np.ndarray, number: int, saturate: bool = True) -> np.ndarray:
    """Round floats to an element type and back. Ties go to even; float8 types clamp if `saturate`."""
    kind = ELEMENT_TYPES[number]
    if saturate and kind.bits <= 8:
        most = float(ml_dtypes.finfo(kind.stored).max)
        least = float(ml_dtypes.finfo(kind.stored).min)
        x = np.where(np.isnan(x), x, np.clip(x, least, most))
    return x.astype(kind.stored).astype(x.dtype)
