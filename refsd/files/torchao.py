"""Read torchao's quantised tensors, taken apart into plain ones.

metadata  tensor_names, JSON: [NAME]; NAME, JSON: {"_type": CLASS, "_data": {}, "_tensor_data_names": [PART]}
tensors   NAME "a.weight" becomes "a._weight_PART"

Int8Tensor, IntxUnpackedToInt8Tensor  qdata I8 [O, I], scale [O, groups], zero_point I8: (q - zero_point) scale
Float8Tensor   qdata F8 [O, I], scale [O, 1], [1, 1] or one for each block
MXTensor       qdata F8_E4M3 [O, I], or U8 [O, I / 2] of E2M1; scale F8_E8M0, one for 32 codes
NVFP4Tensor    qdata U8 [O, I / 2], scale F8_E4M3, one for 16 codes, per_tensor_scale F32
not expanded   Int4Tensor and its siblings, which torchao cannot expand either; columns smoothed by act_pre_scale

Scales of MXTensor and NVFP4Tensor may lie in the tiles of tensor cores (is_swizzled_scales). The tool rounds the
product to the type of the layer, refsd to float32.
Source: torchao 0.18.0, prototype/safetensors; Int8Tensor, Float8Tensor, MXTensor, NVFP4Tensor.
"""

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from refsd.files.packed_integers import Known, Packed, fp4, minus_zero_points
from refsd.files.scaled_groups import Read
from refsd.files.stored import Header, shown
from refsd.kernels.quant import grouped
from refsd.numerics.errors import BadInput
from refsd.numerics.printable import printable
from refsd.numerics.tensor import SCALAR_TYPES, Grouping, Scaling, StoredTensor

_CODES = ("i8", "f8_e4m3", "f8_e5m2")
_FLOATS = ("f32", "f16", "bf16")
_DTYPES = {**SCALAR_TYPES, "f8_e8m0": np.dtype(ml_dtypes.float8_e8m0fnu)}
_ENTRY = ("_type", "_data", "_tensor_data_names")


class _Tensor(NamedTuple):
    """parts: headers of its tensors by their names in the class; data: its other attributes"""

    parts: Mapping[str, Header]
    data: Mapping[str, Any]
    read: Read

    def array(self, part: str) -> np.ndarray:
        header = self.parts[part]
        return self.read(header).view(_DTYPES[header.type]).reshape(header.shape)

    def scales(self, type: str, group: int) -> Callable[[], np.ndarray] | None:
        """Return a function that reads a scale for each group of each row, flat; None if they do not fit."""
        codes, header = self.parts["qdata"], self.parts.get("scale")
        rows, columns = codes.shape[0], codes.shape[1] * (2 if codes.type == "u8" else 1)
        groups = columns // group
        tiled = self.data.get("is_swizzled_scales") is True
        over = (grouped.TILE_ROWS, grouped.TILE_COLUMNS) if tiled else (1, 1)
        count = math.prod(-(-n // tile) * tile for n, tile in zip((rows, groups), over, strict=True))
        if columns % group or header is None or header.type != type or math.prod(header.shape) != count:
            return None

        def flat() -> np.ndarray:
            scale = self.array("scale").reshape(-1)
            return (grouped.in_rows(scale, rows, groups) if tiled else scale).astype(np.float32).reshape(-1)

        return flat


def find(path: object, headers: Mapping[str, Header], metadata: Mapping[str, Any], read: Read) -> dict[str, Packed]:
    """Return each tensor that the metadata describe, by its codes' name. Raises BadInput for malformed ones."""
    found = {}
    for name in _names(metadata):
        module, dot, last = name.rpartition(".")
        prefix = f"{module}{dot}_{last}_"
        if f"{prefix}qdata" not in headers:
            continue
        kind, data, names = _entry(f"{path}: tensor {shown(name)}", metadata.get(name))
        parts = {part: headers[f"{prefix}{part}"] for part in {*names, "qdata"} if f"{prefix}{part}" in headers}
        header, storage = parts["qdata"], f"in torchao's {printable(kind, 40)}"
        known, smoothed = None, "act_pre_scale" in parts
        storage += " with act_pre_scale" if smoothed else ""
        if kind in _CLASSES and not smoothed and len(header.shape) == 2 and all(header.shape):
            known = _CLASSES[kind](_Tensor(parts, data, read), storage)
        if known is None:
            known = Known(_shape(data.get("shape")) or header.shape, storage)
        header = header._replace(shape=known.shape, type=known.type or header.type)
        helpers = [f"{prefix}{part}" for part in parts]
        found[f"{prefix}qdata"] = Packed(name, header, known.storage, helpers, known.expand)
    return found


def _shape(sizes: object) -> tuple[int, ...]:
    listed = isinstance(sizes, list) and len(sizes) < 8 and all(type(n) is int and 0 < n < 2**32 for n in sizes)
    return tuple(sizes) if isinstance(sizes, list) and listed else ()


def _names(metadata: Mapping[str, Any]) -> list[str]:
    try:
        names = json.loads(metadata.get("tensor_names", "[]"))
    except (ValueError, RecursionError):
        return []
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _entry(at: str, text: object) -> tuple[str, dict[str, Any], list[str]]:
    """Return the class, the attributes and the names of the tensors of a metadata entry."""
    try:
        content = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        content = None
    kind, data, names = (content.get(key) if isinstance(content, dict) else None for key in _ENTRY)
    listed = isinstance(names, list) and all(isinstance(name, str) for name in names)
    if not isinstance(kind, str) or not isinstance(data, dict) or not isinstance(names, list) or not listed:
        raise BadInput(f"{at}: its metadata are {ascii(text)[:60]}; torchao's {', '.join(_ENTRY)} expected")
    return kind, data, names


def _int8(tensor: _Tensor, storage: str) -> Known | None:
    header, scale, zero = (tensor.parts.get(part) for part in ("qdata", "scale", "zero_point"))
    if header is None or header.type != "i8" or scale is None:
        return None
    if zero is None or (zero.type == "i8" and not tensor.read(zero).any()):
        return _blocks(tensor, storage)
    expand = minus_zero_points(header, scale, zero, tensor.read)
    return None if expand is None else Known(header.shape, storage, "i16", expand)


def _blocks(tensor: _Tensor, storage: str) -> Known | None:
    """Codes with a scale for each block."""
    header, scale = tensor.parts["qdata"], tensor.parts.get("scale")
    if header.type not in _CODES or scale is None or scale.type not in _FLOATS:
        return None
    shape = scale.shape if len(scale.shape) == 2 else (*scale.shape, 1, 1)[:2]
    if math.prod(shape) != math.prod(scale.shape) or not all(shape):
        return None
    block = (header.shape[0] // shape[0], header.shape[1] // shape[1])
    if header.shape != (block[0] * shape[0], block[1] * shape[1]):
        return None

    def expand() -> StoredTensor:
        scales = tensor.array("scale").astype(np.float32).reshape(shape)
        return StoredTensor(header.type, header.shape, tensor.array("qdata"), Scaling(scales, block=block))

    return Known(header.shape, storage, header.type, expand)


def _mx(tensor: _Tensor, storage: str) -> Known | None:
    header = tensor.parts["qdata"]
    scale = tensor.scales("f8_e8m0", 32)
    if tensor.data.get("block_size") != 32 or scale is None or header.type not in ("u8", "f8_e4m3"):
        return None
    if header.type == "u8":
        return fp4(tensor.read, header, storage, 32, scale)
    expand = lambda: StoredTensor("mxfp8", header.shape, tensor.read(header), Grouping(scale(), 32))
    return Known(header.shape, storage, "mxfp8", expand)


def _nvfp4(tensor: _Tensor, storage: str) -> Known | None:
    header, second = tensor.parts["qdata"], tensor.parts.get("per_tensor_scale")
    scale = tensor.scales("f8_e4m3", 16)
    if header.type != "u8" or tensor.data.get("block_size") != 16 or scale is None:
        return None
    if second is None:
        return fp4(tensor.read, header, storage, 16, scale)
    if second.type != "f32" or math.prod(second.shape) != 1:
        return None
    return fp4(tensor.read, header, storage, 16, lambda: scale() * tensor.array("per_tensor_scale").reshape(-1))


_CLASSES: dict[str, Callable[[_Tensor, str], Known | None]] = {
    "Int8Tensor": _int8,
    "IntxUnpackedToInt8Tensor": _int8,
    "Float8Tensor": _blocks,
    "MXTensor": _mx,
    "NVFP4Tensor": _nvfp4,
}
