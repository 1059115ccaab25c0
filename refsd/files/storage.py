"""How a matrix may be kept and multiplied: ggml's block types, and products in few bits, which round both factors.

q4_k                    a block type; activations stay as they are
comfy-int8              int8 with a scale a row; -convrot: rotated in groups of 256 before
comfy-fp8               F8_E4M3 with one scale
w4a8                    rotated codes of 4 bits, int8 before they are multiplied
convrot-w4a4            4 bits with a scale a row, rotated
nvfp4-w4a4, mxfp8-w8a8, mxfp4-w4a4   with scales of blocks
q4_0+int8               a block type, and activations in few bits: W4A8; +uint8: with a zero point for the tensor
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import ml_dtypes
import numpy as np

from refsd.kernels.quant import BLOCK_TYPES, convrot, w4a8
from refsd.kernels.quant.activation_codes import divided, to_grid
from refsd.kernels.quant.block_type import Importance
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FP8_TENSOR, INT4_ROWS, INT8_ROWS, MXFP4, MXFP8, NVFP4, UINT8_TENSOR
from refsd.numerics.quantization import Quantization, block_scales, in_blocks, quantize, scales
from refsd.numerics.tensor import GROUPED_TYPES, Grouping, Scaling, StoredTensor

# matrix float32 [O, I], what its columns weigh or None -> the matrix as it is kept
Keep = Callable[[np.ndarray, np.ndarray | None], StoredTensor]


class Storage(NamedTuple):
    """
    name:        "q4_k", "comfy-int8", "q4_0+int8"
    type:        StoredTensor.type, or its product_type without the rotation
    bits:        per element, scales included, where rows are long
    unit:        rows are multiples of this
    importance:  whether it takes an importance matrix
    keep:        quantizes a matrix
    activations: to which linear layers round their input; None: not at all
    """

    name: str
    type: str
    bits: float
    unit: int
    importance: Importance
    keep: Keep
    activations: Quantization | None = None


def storage_of(name: str) -> Storage:
    """Return a storage by its name. Raises BadInput."""
    kept, plus, activations = name.partition("+")
    if kept in BLOCK_TYPES:
        storage = _block_type(kept)
    elif kept in _KEPT:
        storage = _KEPT[kept]
    else:
        raise BadInput(f"--types {name}: expected some of {', '.join([*BLOCK_TYPES, *_KEPT])}, or q4_0+int8")
    if plus and activations not in _ACTIVATIONS:
        raise BadInput(f"--types {name}: activations are {', '.join(_ACTIVATIONS)}")
    return storage._replace(name=name, activations=_ACTIVATIONS[activations] if plus else storage.activations)


def _block_type(name: str) -> Storage:
    block = BLOCK_TYPES[name]

    def keep(w: np.ndarray, columns: np.ndarray | None) -> StoredTensor:
        blocks = w.reshape(-1, block.block)
        if columns is None and block.importance is Importance.REQUIRED:
            columns = np.ones(w.shape[-1], np.float32)
        unused = block.importance is Importance.UNUSED
        data = block.quantize(blocks) if unused else block.quantize(blocks, columns)
        return StoredTensor(name, w.shape, data.reshape(-1))

    return Storage(name, name, 8 * block.bytes / block.block, block.block, block.importance, keep)


def _scaled(type: str, dtype, how: Quantization, coded: tuple[int, int] | None = None) -> Keep:
    """Codes with one scale, or one a row."""

    def keep(w: np.ndarray, columns: np.ndarray | None) -> StoredTensor:
        q = quantize(w, how, lambda y: y)
        scaling = Scaling(q.scale.reshape(-1), how.rotation)
        return StoredTensor(type, w.shape, q.values.astype(dtype), scaling, coded)

    return keep


def in_groups(type: str, w: np.ndarray, how: Quantization) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Quantize a matrix to codes with a scale for each block, and one for the tensor.

    type: a key of GROUPED_TYPES; w: float32 [O, I], whole blocks in each row
    -> uint8, of 4 bits two a byte; the scales of blocks, float32 [O, I / block]; the tensor's, float32 [1, 1]
    """
    blocks, scale = in_blocks(w, how.block), scales(w, how)
    inner = block_scales(blocks, how, scale[..., None])
    values = to_grid(divided(blocks, scale[..., None] * inner), how.grid).reshape(-1)
    if how.type != "f4_e2m1":
        codes = values.astype(_E4M3).view(np.uint8)
    else:
        sizes = GROUPED_TYPES[type][:8]  # of codes without a sign, in rising order
        codes = np.searchsorted(sizes, np.abs(values)).astype(np.uint8) | np.signbit(values).astype(np.uint8) << 3
        codes = codes[::2] << np.uint8(4) | codes[1::2]
    return codes, inner[..., 0], scale


def _grouped(type: str, how: Quantization) -> Keep:
    def keep(w: np.ndarray, columns: np.ndarray | None) -> StoredTensor:
        codes, inner, scale = in_groups(type, w, how)
        return StoredTensor(
            type, w.shape, codes, Grouping((inner * scale).reshape(-1).astype(np.float32), how.block)
        )

    return keep


def _w4a8(w: np.ndarray, columns: np.ndarray | None) -> StoredTensor:
    codes, scale, of_rows = w4a8.encode(convrot.rotate(w))
    q = w4a8.decode(codes, scale, w4a8.USUAL_TABLE)
    return StoredTensor("i8", w.shape, q, Scaling(of_rows, convrot.GROUP), (4, w.shape[1] // scale.shape[1]))


_ROTATED, _ROTATED4 = (replace(rows, rotation=convrot.GROUP) for rows in (INT8_ROWS, INT4_ROWS))
_ACTIVATIONS = {
    "int8": INT8_ROWS,
    "uint8": UINT8_TENSOR,
    "fp8": FP8_TENSOR,
    "nvfp4": NVFP4,
    "mxfp8": MXFP8,
    "mxfp4": MXFP4,
}
_UNUSED = Importance.UNUSED
_E4M3 = ml_dtypes.float8_e4m3fn
_KEPT = {
    "comfy-int8": Storage("", "i8", 8, 1, _UNUSED, _scaled("i8", np.int8, INT8_ROWS), INT8_ROWS),
    "comfy-int8-convrot": Storage("", "i8", 8, convrot.GROUP, _UNUSED, _scaled("i8", np.int8, _ROTATED), INT8_ROWS),
    "comfy-fp8": Storage("", "f8_e4m3", 8, 1, _UNUSED, _scaled("f8_e4m3", _E4M3, FP8_TENSOR), FP8_TENSOR),
    "convrot-w4a4": Storage(
        "", "i4", 4, convrot.GROUP, _UNUSED, _scaled("i8", np.int8, _ROTATED4, (4, 0)), INT4_ROWS
    ),
    "w4a8": Storage("", "i8", 4.5, convrot.GROUP, _UNUSED, _w4a8, INT8_ROWS),
    "nvfp4-w4a4": Storage("", "nvfp4_comfy", 4.5, 16, _UNUSED, _grouped("nvfp4_comfy", NVFP4), NVFP4),
    "mxfp8-w8a8": Storage("", "mxfp8", 8.25, 32, _UNUSED, _grouped("mxfp8", MXFP8), MXFP8),
    "mxfp4-w4a4": Storage("", "nvfp4_comfy", 4.25, 32, _UNUSED, _grouped("nvfp4_comfy", MXFP4), MXFP4),
}
