"""Read ComfyUI's formats of 4 and 6 bits whose codes become numbers by more than a table and a scale.

asym_w4a8_int8  <layer>.weight            I8 (or U8) [O, I bits / 8], codes of 4 or 6 bits: kernels/quant/w4a8.py
                <layer>.weight_s_rel      F8_E4M3 (or U8, F32) [O, I / group_size]
                <layer>.weight_s_channel  F32 [O]
                <layer>.weight_codebook   F32 [16]; absent: codes are integers
                <layer>.weight_correction F32, F16 or BF16 [I / group_size, O], added to a group's numbers
                settings: group_size (16), convrot_groupsize (256)
awq_w4a16       <layer>.weight            I8 (or U8) [O, I / 2], codes of 4 bits, the first of a byte lower
                <layer>.weight_scale, weight_zeros  F32, F16 or BF16 [I / group_size, O]: (q - 8) scale + zero
                settings: group_size (64)
svdquant_w4a4   <layer>.weight            I8 (or U8) [O, I / 2], codes of -8 to 7
                <layer>.weight_scale      [I / 64, O]
                <layer>.weight_smooth_factor [I], proj_down [I, R], proj_up [O, R]:
                q scale / smooth + up down^T, the matrix that a product without rounding has
convrot_w4a4    <layer>.weight            I8 (or U8) [O, I / 2], codes of -8 to 7
                <layer>.weight_scale      F32, F16 or BF16 [O]
                settings: convrot_groupsize (256)

Codes of W4A8 become int8 with a scale a row, rotated: what ComfyUI multiplies. With corrections it widens all, and
so does this. Settings may stand under "params".
Source: comfy_kitchen 0.2.40, AsymW4A8Int8Layout and TensorCore{ConvRotW4A4,AWQW4A16,SVDQuantW4A4}Layout.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from refsd.files.scaled_groups import Joined, Read
from refsd.files.stored import Header, shown
from refsd.kernels.quant import convrot, w4a8
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import SCALAR_TYPES, Scaling, StoredTensor, stored

_FLOATS = ("f32", "f16", "bf16")
_SVD_GROUP = 64
_SVD_PARTS = ("scale", "smooth_factor", "proj_down", "proj_up")


class _Layer(NamedTuple):
    """at: beginning of error messages: file and tensor; name: of the weight; config: the layer's settings"""

    at: str
    name: str
    config: Mapping[str, Any]
    headers: Mapping[str, Header]
    read: Read

    @property
    def header(self) -> Header:
        return self.headers[self.name]

    def has(self, *parts: str) -> bool:
        return all(f"{self.name}_{part}" in self.headers for part in parts)

    def setting(self, key: str, default: int) -> int:
        params = self.config.get("params")
        value = self.config.get(key, (params if isinstance(params, dict) else {}).get(key, default))
        if type(value) is not int or not 0 < value < 2**31:
            raise BadInput(f"{self.at}: its {key} is {str(value)[:20]}; a positive integer expected")
        return value

    def part(self, part: str, types: tuple[str, ...], *shape: int) -> Callable[[], np.ndarray]:
        """Check a tensor of the layer. -> a function that reads it as float32. A shape's -1 is any size"""
        name = f"{self.name}_{part}"
        header = self.headers.get(name)
        if header is None:
            raise BadInput(f"{self.at}: {self.config['format']} without {shown(name)}")
        fits = len(header.shape) == len(shape) and all(
            n in (-1, size) for n, size in zip(shape, header.shape, strict=True)
        )
        if header.type not in types or not fits:
            sizes = [n if n >= 0 else "any" for n in shape]
            raise BadInput(
                f"{self.at}: its {shown(name)} is {header.type} {list(header.shape)}; {types[0]} {sizes} expected"
            )
        dtype = SCALAR_TYPES["f8_e4m3" if header.type == "u8" else header.type]
        return lambda: self.read(header).view(dtype).reshape(header.shape).astype(np.float32)

    def groups(self, group: int, columns: int) -> int:
        if not columns or columns % group:
            raise BadInput(f"{self.at}: rows of {columns} are no whole groups of {group}")
        return columns // group

    def rotation(self, columns: int) -> int:
        group = self.setting("convrot_groupsize", convrot.GROUP)
        if columns % group or group < 4 or group != 4 ** (group.bit_length() // 2):
            raise BadInput(f"{self.at}: rotated in groups of {group}; a power of 4 that divides {columns} expected")
        return group

    def bytes(self) -> np.ndarray:
        return self.read(self.header).view(np.uint8).reshape(self.header.shape)

    def joined(self, type: str, columns: int, expand: Callable[[], StoredTensor], *parts: str) -> Joined:
        header = self.header._replace(type=type, shape=(self.header.shape[0], columns))
        return Joined(header, expand, [f"{self.name}_{part}" for part in parts])


def join(at: str, name: str, config: Mapping[str, Any], headers: Mapping[str, Header], read: Read) -> Joined | None:
    """Join the weight `name` with the tensors that belong to it. config: its "format" is a key of PACKED_FORMATS

    Returns None if it is known and cannot be expanded. Raises BadInput for tensors that are missing or do not fit.
    """
    header = headers[name]
    if header.type not in ("i8", "u8") or len(header.shape) != 2 or not all(header.shape):
        found = f"{header.type} {list(header.shape)}"
        raise BadInput(f"{at}: {found} in the format {config['format']}; a matrix of i8 expected")
    return PACKED_FORMATS[config["format"]](_Layer(at, name, config, headers, read))


def _w4a8(layer: _Layer) -> Joined | None:
    rows, width = layer.header.shape
    scales = layer.part("s_rel", ("f8_e4m3", "u8", "f32"), rows, -1)
    columns = layer.headers[f"{layer.name}_s_rel"].shape[1] * layer.setting("group_size", 16)
    bits = 8 * width // columns if columns else 0
    table = layer.part("codebook", ("f32",), 16) if layer.has("codebook") else None
    if bits not in (4, 6) or bits * columns != 8 * width or (bits == 6 and (table or columns % 4)):
        raise BadInput(f"{layer.at}: rows of {width} bytes for {columns} codes; 4 or 6 bits a code expected")
    rotation = layer.rotation(columns)
    of_rows = layer.part("s_channel", ("f32",), rows)
    groups = layer.headers[f"{layer.name}_s_rel"].shape[1]
    added = layer.part("correction", _FLOATS, groups, rows) if layer.has("correction") else None

    def expand() -> StoredTensor:
        scale, levels = scales(), table and table()
        if not np.isfinite(scale).all() or (levels is not None and not np.isfinite(levels).all()):
            raise BadInput(f"{layer.at}: a scale of its groups, or a number of its codebook, is not finite")
        q = w4a8.decode(w4a8.unpack(layer.bytes(), bits), scale, levels, bits)
        if added is None:
            return StoredTensor("i8", q.shape, q, Scaling(of_rows(), rotation), (bits, columns // groups))
        with np.errstate(all="ignore"):  # what is not finite is reported, not warned of
            w = q * of_rows()[:, None] + np.repeat(added().T, columns // groups, axis=1)
            return stored(convrot.rotate(w, rotation))._replace(coded=(bits, columns // groups))

    parts = ("s_rel", "s_channel", *(["codebook"] if table else []), *(["correction"] if added else []))
    return layer.joined("f32" if added else "i8", columns, expand, *parts)


def _w4a4(layer: _Layer) -> Joined | None:
    rows, columns = layer.header.shape[0], 2 * layer.header.shape[1]
    of_rows, rotation = layer.part("scale", _FLOATS, rows), layer.rotation(columns)

    def expand() -> StoredTensor:
        q = w4a8.signed(w4a8.unpack(layer.bytes()))
        return StoredTensor("i8", q.shape, q, Scaling(of_rows(), rotation), (4, 0))

    return layer.joined("i8", columns, expand, "scale")


def _awq(layer: _Layer) -> Joined | None:
    if not layer.has("scale", "zeros"):
        return None
    rows, columns = layer.header.shape[0], 2 * layer.header.shape[1]
    group = layer.setting("group_size", 64)
    scales, zeros = (layer.part(p, _FLOATS, layer.groups(group, columns), rows) for p in ("scale", "zeros"))

    def expand() -> StoredTensor:
        q = w4a8.unpack(layer.bytes()).astype(np.float32) - np.float32(8)
        with np.errstate(all="ignore"):  # what is not finite is reported, not warned of
            scale, zero = (np.repeat(t().T, group, axis=1) for t in (scales, zeros))
            return stored(q * scale + zero)._replace(coded=(4, group))

    return layer.joined("f32", columns, expand, "scale", "zeros")


def _svdquant(layer: _Layer) -> Joined | None:
    if not layer.has(*_SVD_PARTS):
        return None
    rows, columns = layer.header.shape[0], 2 * layer.header.shape[1]
    scales = layer.part("scale", _FLOATS, layer.groups(_SVD_GROUP, columns), rows)
    smooth, down = layer.part("smooth_factor", _FLOATS, columns), layer.part("proj_down", _FLOATS, columns, -1)
    up = layer.part("proj_up", _FLOATS, rows, layer.headers[f"{layer.name}_proj_down"].shape[-1])

    def expand() -> StoredTensor:
        q = w4a8.signed(w4a8.unpack(layer.bytes())).astype(np.float32)
        with np.errstate(all="ignore"):  # what is not finite is reported, not warned of
            w = q * np.repeat(scales().T, _SVD_GROUP, axis=1) / smooth() + up() @ down().T
        return stored(w)._replace(coded=(4, _SVD_GROUP))

    return layer.joined("f32", columns, expand, *_SVD_PARTS)


PACKED_FORMATS: dict[str, Callable[[_Layer], Joined | None]] = {
    "asym_w4a8_int8": _w4a8,
    "convrot_w4a4": _w4a4,
    "awq_w4a16": _awq,
    "svdquant_w4a4": _svdquant,
}
