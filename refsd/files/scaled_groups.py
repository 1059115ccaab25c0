"""Read ComfyUI's formats with a scale for each group of a row: NVFP4 and MXFP8.

nvfp4  <layer>.weight          U8 [O, I / 2], codes of 4 bits (E2M1), two a byte
       <layer>.weight_scale    F8_E4M3 (or U8), one for 16 codes, in the tile order that tensor cores read
       <layer>.weight_scale_2  F32 [], for the whole matrix
mxfp8  <layer>.weight          F8_E4M3 [O, I]
       <layer>.weight_scale    F8_E8M0 (or U8), one for 32 codes, in the tile order that tensor cores read

either <layer>.pre_quant_scale F32 (or F16, BF16) [I], by which AWQ has the input multiplied: here, the columns

The matrix is padded to whole tiles of 16 by 16, or 32 by 32. The layer's entry in the metadata, or its tensor
comfy_quant, names the format; without either, these tensors are plain bytes.
Source: ComfyUI, comfy/quant_ops.py; comfy_kitchen, TensorCoreNVFP4Layout and TensorCoreMXFP8Layout.
"""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import ml_dtypes
import numpy as np

from refsd.files.stored import Header, shown
from refsd.kernels.quant import grouped
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import SCALAR_TYPES, Grouping, StoredTensor

Read = Callable[[Header], np.ndarray]
SMOOTHED = "pre_quant_scale"
_SMOOTHED_TYPES = ("f32", "f16", "bf16")


class GroupFormat(NamedTuple):
    """How a format packs its codes and scales.

    type:    as StoredTensor.type
    kept:    type of the weight in the file
    a_byte:  codes per byte
    group:   codes per scale
    pad:     rows and columns of the matrix are multiples of this
    scales:  types of the scales in the file
    decoded: dtype of the scales
    global_: whether there is a further scale for the whole matrix
    """

    type: str
    kept: str
    a_byte: int
    group: int
    pad: int
    scales: tuple[str, ...]
    decoded: np.dtype
    global_: bool


GROUP_FORMATS = {
    "nvfp4": GroupFormat(
        "nvfp4_comfy", "u8", 2, 16, 16, ("f8_e4m3", "u8"), np.dtype(ml_dtypes.float8_e4m3fn), True
    ),
    "mxfp8": GroupFormat(
        "mxfp8", "f8_e4m3", 1, 32, 32, ("f8_e8m0", "u8"), np.dtype(ml_dtypes.float8_e8m0fnu), False
    ),
}


class Joined(NamedTuple):
    """A weight's header with its real type and shape, a function that reads its scales, and their tensor names.

    scaling: may return the codes with their scales instead
    """

    header: Header
    scaling: Callable[[], Grouping | StoredTensor]
    helpers: list[str]


def join(at: str, name: str, kind: str, headers: Mapping[str, Header], read: Read) -> Joined:
    """Join the weight `name` with its scales.

    at:   beginning of error messages: file and tensor
    kind: format, a key of GROUP_FORMATS
    Raises BadInput for scales that are missing or do not fit.
    """
    layer = name.removesuffix("weight")
    form, header = GROUP_FORMATS[kind], headers[name]
    if header.type != form.kept or len(header.shape) != 2:
        raise BadInput(f"{at}: {header.type} {list(header.shape)} in the format {kind}; a matrix of {form.kept}")
    rows, columns = header.shape[0], header.shape[1] * form.a_byte
    if not rows or not columns or rows % form.pad or columns % form.pad:
        raise BadInput(f"{at}: {kind} of [{rows}, {columns}]; multiples of {form.pad} expected")
    groups = columns // form.group
    tiled = -(-rows // grouped.TILE_ROWS) * grouped.TILE_ROWS * -(-groups // grouped.TILE_COLUMNS)
    helpers = [f"{layer}weight_scale", *([f"{layer}weight_scale_2"] if form.global_ else [])]
    for helper, types, size in zip(
        helpers, (form.scales, ("f32",)), (tiled * grouped.TILE_COLUMNS, 1), strict=False
    ):
        found = headers.get(helper)
        if found is None:
            raise BadInput(f"{at}: {kind} without its scale: {shown(helper)} is missing")
        if found.type not in types or math.prod(found.shape) != size:
            raise BadInput(
                f"{at}: its scale {shown(helper)} is {found.type} {list(found.shape)}; {types[0]}, {size} of them, "
                "expected"
            )

    smoothed = headers.get(f"{layer}{SMOOTHED}")
    if smoothed is not None:
        helpers.append(f"{layer}{SMOOTHED}")
        if smoothed.type not in _SMOOTHED_TYPES or smoothed.shape != (columns,):
            found = f"{smoothed.type} {list(smoothed.shape)}"
            raise BadInput(f"{at}: its {shown(helpers[-1])} is {found}; f32 [{columns}] expected")

    def scaling() -> Grouping:
        tiles = read(headers[helpers[0]]).view(form.decoded)
        scale = grouped.in_rows(tiles, rows, groups).astype(np.float32)
        if form.global_:
            scale *= read(headers[helpers[1]]).view(np.float32)[0]
        of_columns = None
        if smoothed is not None:
            of_columns = read(smoothed).view(SCALAR_TYPES[smoothed.type]).astype(np.float32)
        return Grouping(np.ascontiguousarray(scale).reshape(-1), form.group, of_columns)

    return Joined(header._replace(type=form.type, shape=(rows, columns)), scaling, helpers)
