"""Write a matrix in few bits as ComfyUI's files keep it: its codes, its scales, and a text that names the format.

The tensors are those that scaled.py, scaled_groups.py and comfy_packed.py read; the numbers are rounded as
comfy-kitchen rounds them (0.2.40, eager).
"""

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from refsd.files.storage import in_groups, storage_of
from refsd.files.writers import Spec
from refsd.kernels.quant import convrot, grouped, w4a8
from refsd.numerics.profiles import MXFP8, NVFP4
from refsd.numerics.tensor import Scaling, StoredTensor, stored


class Layout(NamedTuple):
    """How ComfyUI keeps a matrix.

    settings:      what the layer's comfy_quant says
    rows, columns: of which the matrix has a multiple
    parts:         [O, I] -> what follows the weight's name -> type and shape of a tensor
    encode:        matrix float32 [O, I] -> the tensors of `parts`, in their order
    """

    settings: dict[str, Any]
    rows: int
    columns: int
    parts: Callable[[int, int], dict[str, Spec]]
    encode: Callable[[np.ndarray], tuple[np.ndarray, ...]]


def specs(name: str, shape: tuple[int, ...], layout: Layout) -> dict[str, Spec]:
    """Return the tensors that keep the weight `name`, whose last part is "weight", by name."""
    named = {f"{name}{part}": spec for part, spec in layout.parts(shape[0], shape[1]).items()}
    return named | {_settings_name(name): Spec("u8", _text(layout).shape)}


def tensors(name: str, w: np.ndarray, layout: Layout) -> Iterator[StoredTensor]:
    """Yield the tensors of `specs`. w: float32 [O, I]"""
    wanted = layout.parts(*w.shape).values()
    for spec, array in zip(wanted, layout.encode(w), strict=True):
        tensor = stored(np.asarray(array).reshape(spec.shape))
        assert tensor.type == spec.type, f"{name}: {tensor.type}"
        yield tensor
    yield stored(_text(layout))


def _settings_name(name: str) -> str:
    return name.removesuffix("weight") + "comfy_quant"


def _text(layout: Layout) -> np.ndarray:
    return np.frombuffer(json.dumps(layout.settings).encode(), np.uint8)


def _scaled(name: str) -> Callable[[np.ndarray], tuple[np.ndarray, ...]]:
    """Codes and scales as `storage_of(name)` keeps them."""

    def encode(w: np.ndarray) -> tuple[np.ndarray, ...]:
        kept = storage_of(name).keep(w, None)
        assert isinstance(kept.scaling, Scaling)
        return kept.data, kept.scaling.scale

    return encode


def _nvfp4(w: np.ndarray) -> tuple[np.ndarray, ...]:
    codes, inner, scale = in_groups("nvfp4_comfy", w, NVFP4)
    return codes, grouped.in_tiles(inner.astype(ml_dtypes.float8_e4m3fn)), scale


def _mxfp8(w: np.ndarray) -> tuple[np.ndarray, ...]:
    codes, inner, _ = in_groups("mxfp8", w, MXFP8)
    return codes.view(ml_dtypes.float8_e4m3fn), grouped.in_tiles(
        inner.astype(ml_dtypes.float8_e8m0fnu).view(np.uint8)
    )


def _w4a8(w: np.ndarray) -> tuple[np.ndarray, ...]:
    codes, inner, of_rows = w4a8.encode(convrot.rotate(w))
    packed = (codes[:, ::2] | codes[:, 1::2] << np.uint8(4)).view(np.int8)
    return packed, inner.astype(ml_dtypes.float8_e4m3fn), of_rows, w4a8.USUAL_TABLE


def _w4a4(w: np.ndarray) -> tuple[np.ndarray, ...]:
    codes, scale = _scaled("convrot-w4a4")(w)
    return (codes[:, ::2] & np.int8(15)) | codes[:, 1::2] << np.int8(4), scale


def _tiled(rows: int, groups: int) -> tuple[int, int]:
    return (rows + -rows % grouped.TILE_ROWS, groups + -groups % grouped.TILE_COLUMNS)


def _of_rows(rows: int, columns: int) -> dict[str, Spec]:
    return {"": Spec("i8", (rows, columns)), "_scale": Spec("f32", (rows, 1))}


_ROTATED = {"convrot": True, "convrot_groupsize": convrot.GROUP}
# Names as of `refsd quality --types`.
LAYOUTS = {
    "comfy-int8": Layout({"format": "int8_tensorwise"}, 1, 1, _of_rows, _scaled("comfy-int8")),
    "comfy-int8-convrot": Layout(
        {"format": "int8_tensorwise"} | _ROTATED, 1, convrot.GROUP, _of_rows, _scaled("comfy-int8-convrot")
    ),
    "comfy-fp8": Layout(
        {"format": "float8_e4m3fn"},
        1,
        1,
        lambda rows, columns: {"": Spec("f8_e4m3", (rows, columns)), "_scale": Spec("f32", ())},
        _scaled("comfy-fp8"),
    ),
    "convrot-w4a4": Layout(
        {"format": "convrot_w4a4", "convrot_groupsize": convrot.GROUP},
        1,
        convrot.GROUP,
        lambda rows, columns: {"": Spec("i8", (rows, columns // 2)), "_scale": Spec("f32", (rows,))},
        _w4a4,
    ),
    "w4a8": Layout(
        {"format": "asym_w4a8_int8", "group_size": 16, "convrot_groupsize": convrot.GROUP},
        1,
        convrot.GROUP,
        lambda rows, columns: {
            "": Spec("i8", (rows, columns // 2)),
            "_s_rel": Spec("f8_e4m3", (rows, columns // 16)),
            "_s_channel": Spec("f32", (rows,)),
            "_codebook": Spec("f32", (16,)),
        },
        _w4a8,
    ),
    "nvfp4-w4a4": Layout(
        {"format": "nvfp4"},
        16,
        16,
        lambda rows, columns: {
            "": Spec("u8", (rows, columns // 2)),
            "_scale": Spec("f8_e4m3", _tiled(rows, columns // 16)),
            "_scale_2": Spec("f32", ()),
        },
        _nvfp4,
    ),
    "mxfp8-w8a8": Layout(
        {"format": "mxfp8"},
        32,
        32,
        lambda rows, columns: {
            "": Spec("f8_e4m3", (rows, columns)),
            "_scale": Spec("u8", _tiled(rows, columns // 32)),
        },
        _mxfp8,
    ),
}
