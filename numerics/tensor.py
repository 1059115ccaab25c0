"""A tensor as a file stores it: the name of its storage type, its shape and its bytes."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import ml_dtypes
import numpy as np

from refsd.kernels.quant import BLOCK_TYPES, convrot, f8_e4m3, f8_e5m2, grouped, int8_scaled

# More than any tensor has; NumPy counts an empty axis as 1 and refuses shapes of 2^63 bytes.
MAX_ELEMENTS = 2**48
MAX_RANK = 32

# Types with independent elements. Block types are in refsd.kernels.quant.
SCALAR_TYPES: dict[str, np.dtype] = {
    "f64": np.dtype(np.float64),
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f8_e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "f8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "i64": np.dtype(np.int64),
    "i32": np.dtype(np.int32),
    "i16": np.dtype(np.int16),
    "i8": np.dtype(np.int8),
    "u8": np.dtype(np.uint8),
    "bool": np.dtype(np.bool_),
}


# type with codes of 4 or 8 bits and a scale for each group -> the value of each code, before scaling
GROUPED_TYPES = {
    "nf4": grouped.TABLES["nf4"],
    "fp4": grouped.TABLES["fp4"],
    "nvfp4_comfy": grouped.TABLES["nvfp4"],
    "mxfp8": grouped.TABLES["mxfp8"],
}

_WIDEN = {"f8_e4m3": f8_e4m3.dequantize, "f8_e5m2": f8_e5m2.dequantize}


def shape_problem(shape: Sequence[int]) -> str | None:
    """Say why a shape in a file's header or a recipe is none that an array can have; None if it is one."""
    if len(shape) > MAX_RANK:
        return f"{len(shape)} axes, at most {MAX_RANK} expected"
    if any(size < 0 for size in shape):
        return "an axis is negative"
    return "more than 2^48 elements" if math.prod(size or 1 for size in shape) > MAX_ELEMENTS else None


class Scaling(NamedTuple):
    """The scale of an 8-bit tensor, which is stored in a second tensor.

    scale:    float32 [1], or [rows] for int8, or [m, n], one for each block of a matrix
    rotation: size of the groups that ConvRot has rotated (int8); 0: not rotated
    unit:     by what the product of code and scale is multiplied, after it is rounded to float32 (int8)
    block:    rows and columns of a block, the last of which may be cut short
    """

    scale: np.ndarray
    rotation: int = 0
    unit: float = 1.0
    block: tuple[int, int] = (1, 1)

    def of_elements(self, rows: int, columns: int) -> np.ndarray:
        """Return the scale of each element of a matrix, or of its rows. -> broadcast to [rows, columns]"""
        if self.scale.ndim < 2:
            return self.scale.reshape(-1, 1)
        down = np.repeat(self.scale, self.block[0], axis=0)[:rows]
        return np.repeat(down, self.block[1], axis=1)[:, :columns]


class Grouping(NamedTuple):
    """The scales of a tensor of codes, one for each group; a group may span the end of a row.

    scale:   float32 [groups]
    group:   elements in a group
    columns: float32 [columns], by which each value is multiplied after that; None: by nothing
    """

    scale: np.ndarray
    group: int
    columns: np.ndarray | None = None


class StoredTensor(NamedTuple):
    """A tensor in its storage type, not yet expanded.

    type:  a key of SCALAR_TYPES, of kernels.quant.BLOCK_TYPES ("q4_0", "q6_k", ...) or of GROUPED_TYPES
    shape: in torch's order, outermost first
    data:  scalar types: an array of `shape`; others: flat uint8, shape[0] * ... * bytes in a row.
           It may be a read-only view of a mapped file.
    scaling: a Scaling for f8_e4m3, f8_e5m2 and i8, or None without a scale; a Grouping for GROUPED_TYPES
    coded:   bits of the codes from which a file's format makes these numbers, and how many of a row share a scale
             (0: all); None if the numbers are what the file holds
    """

    type: str
    shape: tuple[int, ...]
    data: np.ndarray
    scaling: Scaling | Grouping | None = None
    coded: tuple[int, int] | None = None

    def values(self) -> np.ndarray:
        """Expand to numbers: scalar types unchanged (no copy); 8-bit floats, scaled and block types in float32."""
        if isinstance(self.scaling, Grouping):
            table, (scale, group, columns) = GROUPED_TYPES[self.type], self.scaling
            y = grouped.dequantize(self.data.reshape(-1), table, scale, group)
            y = y[: math.prod(self.shape)].reshape(self.shape)
            return y if columns is None else np.multiply(y, columns, out=y)
        if self.scaling is not None and self.scaling.scale.ndim == 2:
            return self._blocks(self.scaling)
        if self.type in _WIDEN:
            scale = 1.0 if self.scaling is None else self.scaling.scale[0]
            return _WIDEN[self.type](self.data.reshape(-1).view(np.uint8), scale).reshape(self.shape)
        if self.scaling is not None:
            rows = self.data.reshape(self.shape[0], -1)
            if self.scaling.rotation:
                return convrot.dequantize(rows, self.scaling.scale, self.scaling.rotation).reshape(self.shape)
            y = int8_scaled.dequantize(rows, self.scaling.scale)
            return np.multiply(y, np.float32(self.scaling.unit), out=y).reshape(self.shape)
        if self.type in SCALAR_TYPES:
            return self.data.reshape(self.shape)
        block_type = BLOCK_TYPES[self.type]
        blocks = self.data.reshape(-1, block_type.bytes)
        return block_type.dequantize(blocks).reshape(self.shape)

    def _blocks(self, scaling: Scaling) -> np.ndarray:
        """Expand codes with a scale for each block: the product, rounded to float32."""
        codes, widen = self.data.reshape(-1), _WIDEN.get(self.type)
        y = codes.astype(np.float32) if widen is None else widen(codes.view(np.uint8), 1.0)
        y = y.reshape(self.shape[0], -1)
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is reported, not warned of
            return np.multiply(y, scaling.of_elements(*y.shape), out=y).reshape(self.shape)

    @property
    def product_type(self) -> str:
        """The type as products see it: "i8/256" ("i4/256": 4 bits) if groups of 256 are rotated; else the type."""
        rotation = self.scaling.rotation if isinstance(self.scaling, Scaling) else 0
        kind = "i4" if self.type == "i8" and self.coded == (4, 0) else self.type
        return f"{kind}/{rotation}" if rotation else kind

    def storable(self) -> np.ndarray:
        """Return an array that a file can store: scalar types unchanged, blocks as uint8 [..., bytes in a row]."""
        data = np.asarray(self.data, order="C")
        return data if self.type in SCALAR_TYPES else data.reshape(*self.shape[:-1], -1)

    def rows(self, index: np.ndarray | slice) -> "StoredTensor":
        """Select rows (slices along the last axis) without expanding them.

        index: row numbers, counted over all axes but the last

        Raises IndexError for a row that does not exist; a negative index does not count from the end.
        """
        count = math.prod(self.shape[:-1])
        if isinstance(index, np.ndarray) and index.size and (index.min() < 0 or index.max() >= count):
            raise IndexError(f"rows {index.min()}..{index.max()} do not fit a table of {count} rows")
        scaling = self.scaling
        if isinstance(scaling, Grouping):
            return self._grouped_rows(scaling, count, index)
        data = self.data.reshape(count, self.data.size // max(1, count))[index]
        if scaling is not None and scaling.scale.size > 1:
            of_row = np.arange(count) // max(1, count // self.shape[0])
            down = scaling.block[0] if scaling.scale.ndim == 2 else 1
            block = (1, scaling.block[1])
            scaling = scaling._replace(scale=scaling.scale[of_row[index] // down], block=block)
        shape = (len(data), self.shape[-1])
        return self._replace(
            shape=shape, data=data.reshape(-1) if self.type in BLOCK_TYPES else data, scaling=scaling
        )

    def _grouped_rows(self, scaling: Grouping, count: int, index: np.ndarray | slice) -> "StoredTensor":
        """Select rows of a grouped type; expand them if groups do not end at the ends of rows."""
        if not count or self.shape[-1] % scaling.group:
            return stored(self.values().reshape(count, self.shape[-1])[index])
        data = self.data.reshape(count, -1)[index]
        scale = scaling.scale.reshape(count, -1)[index].reshape(-1)
        return StoredTensor(self.type, (len(data), self.shape[-1]), data.reshape(-1), scaling._replace(scale=scale))


def stored(array: np.ndarray) -> StoredTensor:
    """Wrap an array of a scalar dtype. Raises KeyError for a dtype that no file stores."""
    array = np.asarray(array)
    return StoredTensor(_NAME_OF[array.dtype], array.shape, array)


_NAME_OF = {dtype: name for name, dtype in SCALAR_TYPES.items()}
