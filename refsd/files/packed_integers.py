"""Recognise matrices of packed codes, and expand those that need no more than the file has.

GPTQ                <layer>.qweight I32 [I bits / 32, O], qzeros [groups, O bits / 32], scales [groups, O],
                    g_idx I32 [I], the group of each column: (q - qzero - 1) scale
AWQ                 <layer>.qweight I32 [I, O / 8], qzeros [groups, O / 8], scales [groups, O]: (q - qzero) scale,
                    4 bits, of which a word has rows 0, 2, 4, 6, 1, 3, 5, 7 from its lowest bits on
compressed-tensors  <layer>.weight_packed I32 [O, ceil(I bits / 32)], weight_shape I64 [2],
                    weight_scale [O, groups], weight_zero_point I32 [ceil(O bits / 32), groups],
                    weight_g_idx: (q - zero) scale, where q and zero stand 2^(bits - 1) too high
                    <layer>.weight_packed U8 [O, I / 2], weight_scale F8_E4M3 [O, I / 16], weight_global_scale:
                    NVFP4, divided by the global scale; or weight_scale U8 [O, I / 32]: MXFP4
ModelOpt            <layer>.weight U8 [O, I / 2], weight_scale F8_E4M3 [O, I / 16], weight_scale_2, and no
                    comfy_quant: NVFP4 whose codes and scales are not in ComfyUI's order
optimum-quanto      <layer>.weight._data I8 or F8 [O, I], weight._scale [O, 1]
not expanded        Nunchaku's <layer>.qweight I8 [O, I / 2], wscales, and parts of its SVD: tiles for tensor cores
                    optimum-quanto's weight._data U8 of 2 or 4 bits: the shape is not in the file

Each becomes <layer>.weight with its real shape; the layer's other tensors but the bias are helpers. Codes are
dense: number i of a row has bits i n to i n + n - 1, counted from the lowest bit of its first word. The tools round
the product to the type of the scales, refsd to float32.
Source: AutoGPTQ 0.7.1, qlinear_cuda_old.py; AutoAWQ, packing_utils.py; compressed-tensors 0.20.0, pack_quantized,
nvfp4 and mxfp4; TensorRT Model Optimizer 0.47.0, nvfp4_tensor.py; optimum-quanto 0.2.7; nunchaku, linear.py.
"""

import math
from collections.abc import Callable, Container, Mapping
from typing import NamedTuple

import ml_dtypes
import numpy as np

from refsd.files.scaled_groups import Read
from refsd.files.stored import Header, shown
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import SCALAR_TYPES, Grouping, Scaling, StoredTensor

_BITS = 32  # of the integers into which GPTQ, AWQ and compressed-tensors pack
_AWQ_ROWS = (0, 2, 4, 6, 1, 3, 5, 7)
_SCALES = ("f32", "f16", "bf16")


class Packed(NamedTuple):
    """A recognised matrix.

    name:    of the weight: <layer>.weight
    header:  of the packed tensor, with the real shape, and the type of the codes if it can be expanded
    storage: in words
    helpers: names of the layer's other tensors
    expand:  returns the codes with their scales; None: refsd cannot
    """

    name: str
    header: Header
    storage: str
    helpers: list[str]
    expand: Callable[[], StoredTensor] | None = None


class Known(NamedTuple):
    """A format's real shape, the storage in words, the type of the codes, and how they are read."""

    shape: tuple[int, ...]
    storage: str
    type: str = ""
    expand: Callable[[], StoredTensor] | None = None


def find(
    path: object, headers: Mapping[str, Header], read: Read, described: Container[str] = ()
) -> dict[str, Packed]:
    """Return each packed matrix, by its name in the file. described: layers whose format the metadata name"""
    layers: dict[str, dict[str, str]] = {}
    for name in headers:
        layer, _, part = name.rpartition(".")
        if layer.endswith(".weight"):
            layer, part = layer.removesuffix(".weight"), f"weight.{part}"
        layers.setdefault(layer, {})[part] = name
    found: dict[str, Packed] = {}
    for layer, names in layers.items():
        parts = _Parts(f"{path}: layer {shown(layer)}", {part: headers[n] for part, n in names.items()}, read)
        for part in _FORMATS.keys() & names.keys():
            if (part == "weight" and layer in described) or (part != "weight" and "weight" in names):
                continue
            header, known = headers[names[part]], _FORMATS[part](headers[names[part]], parts)
            if known is not None:
                header = header._replace(shape=known.shape, type=known.type or header.type)
                helpers = [n for other, n in names.items() if other not in (part, "bias")]
                found[names[part]] = Packed(f"{layer}.weight", header, known.storage, helpers, known.expand)
    return found


class _Parts(NamedTuple):
    """The tensors of a layer. at: beginning of error messages: file and layer"""

    at: str
    headers: Mapping[str, Header]
    read: Read

    def has(self, name: str, types: Container[str], *shape: int) -> bool:
        header = self.headers.get(name)
        return header is not None and header.type in types and header.shape == shape

    def array(self, name: str) -> np.ndarray:
        header = self.headers[name]
        return self.read(header).view(SCALAR_TYPES[header.type]).reshape(header.shape)

    def floats(self, name: str) -> np.ndarray:
        return self.array(name).astype(np.float32)


def codes(words: np.ndarray, bits: int, count: int) -> np.ndarray:
    """Unpack the first `count` numbers of each row. words: int32 [R, W] -> uint8 [R, count]"""
    raw = np.ascontiguousarray(words).view(np.uint8)
    if 8 % bits == 0:
        shifts = np.arange(0, 8, bits, dtype=np.uint8)
        return ((raw[..., None] >> shifts) & np.uint8(2**bits - 1)).reshape(len(raw), -1)[:, :count]
    each = np.unpackbits(raw, axis=-1, count=count * bits, bitorder="little").reshape(len(raw), count, bits)
    return np.packbits(each, axis=-1, bitorder="little")[..., 0]


def _scaled(q: np.ndarray, zero: np.ndarray, scale: np.ndarray, group_of: np.ndarray | None) -> StoredTensor:
    """Return (q - zero) scale. q [O, I]; zero, scale [O, groups]; group_of: of each column; None: equal groups"""
    q, zero = q.astype(np.int16), zero.astype(np.int16)
    group = -(-q.shape[1] // scale.shape[1])
    if group_of is not None and (group_of != np.arange(len(group_of)) // group).any():
        scale, zero, group = scale[:, group_of], zero[:, group_of], 1
    q -= np.repeat(zero, group, axis=1)[:, : q.shape[1]]
    if q.min(initial=0) >= -128 and q.max(initial=0) < 128:
        q = q.astype(np.int8)
    kind = "i8" if q.dtype == np.int8 else "i16"
    return StoredTensor(kind, q.shape, q, Scaling(np.ascontiguousarray(scale, np.float32), block=(1, group)))


def minus_zero_points(header: Header, scale: Header, zero: Header, read: Read) -> Callable[[], StoredTensor] | None:
    """Return how int8 codes with a zero point for each group or row are read; None if the three do not fit."""
    if header.type != "i8" or zero.type != "i8" or scale.type not in _SCALES or len(header.shape) != 2:
        return None
    (rows, columns), groups = header.shape, math.prod(scale.shape) // max(1, header.shape[0])
    shapes = (rows, groups), (rows,) if groups == 1 else (rows, groups)
    if scale.shape not in shapes or zero.shape not in shapes or not _groups_fit(columns, groups):
        return None
    array = lambda of: read(of).view(SCALAR_TYPES[of.type]).reshape(rows, -1)
    return lambda: _scaled(array(header), array(zero), array(scale).astype(np.float32), None)


def _groups_fit(columns: int, groups: int) -> bool:
    return groups > 0 and (columns % groups == 0 or -(-columns // -(-columns // groups)) == groups)


def _qweight(header: Header, parts: _Parts) -> Known | None:
    """GPTQ's, AWQ's or Nunchaku's matrix; None of another's."""
    if len(header.shape) != 2:
        return None
    first, second = header.shape
    if header.type == "i8" and "wscales" in parts.headers:
        return Known((first, 2 * second), "in Nunchaku's SVDQuant")
    scales = parts.headers.get("scales")
    if header.type != "i32" or scales is None or len(scales.shape) != 2:
        return None
    groups, out = scales.shape
    if 8 * second == out:
        expand = lambda: _scaled(
            _awq(parts.array("qweight")).T, _awq(parts.array("qzeros")).T, parts.floats("scales").T, None
        )
        return _known(parts, (out, first), groups, "in AWQ's 4 bits", 4, expand)
    if second != out or not first:
        return None
    order = parts.headers.get("g_idx")
    inputs = order.shape[0] if order is not None and order.shape else 8 * first
    bits = first * _BITS // inputs if inputs else 0
    if bits not in (2, 3, 4, 8) or -(-inputs * bits // _BITS) != first:
        return None

    def gptq() -> StoredTensor:
        q = codes(np.ascontiguousarray(parts.array("qweight").T), bits, inputs)
        zero = codes(parts.array("qzeros"), bits, out).astype(np.int16) + 1
        if bits != 3:  # AutoGPTQ's 3 bits have 8, where others go on with 0
            zero &= 2**bits - 1
        return _scaled(q, zero.T, parts.floats("scales").T, _order(parts, "g_idx", groups))

    known = _known(parts, (out, inputs), groups, f"in GPTQ's {bits} bits", bits, gptq)
    listed = "g_idx" not in parts.headers or parts.has("g_idx", ("i32",), inputs)
    return known if listed else known._replace(type="", expand=None)


def _known(
    parts: _Parts, shape: tuple[int, int], groups: int, storage: str, bits: int, expand: Callable[[], StoredTensor]
) -> Known:
    """GPTQ's or AWQ's format, expanded if its zero points and scales have the shapes that it says."""
    zeros = parts.has("qzeros", ("i32",), groups, -(-shape[0] * bits // _BITS))
    fits = zeros and parts.has("scales", _SCALES, groups, shape[0]) and _groups_fit(shape[1], groups)
    return Known(shape, storage, "i8" if bits < 8 else "i16", expand) if fits else Known(shape, storage)


def _awq(words: np.ndarray) -> np.ndarray:
    """Unpack AWQ's columns of 4 bits. [R, W] -> uint8 [R, 8 W]"""
    each = codes(words, 4, 8 * words.shape[1]).reshape(len(words), -1, 8)
    out = np.empty_like(each)
    out[..., list(_AWQ_ROWS)] = each
    return out.reshape(len(words), -1)


def _order(parts: _Parts, name: str, groups: int) -> np.ndarray | None:
    """Return the group of each column; None if the file does not list them. Raises BadInput."""
    if name not in parts.headers:
        return None
    listed = parts.array(name)
    if listed.min(initial=0) < 0 or listed.max(initial=0) >= groups:
        raise BadInput(f"{parts.at}: its {name} has {listed.min()} to {listed.max()}; 0 to {groups - 1} expected")
    return listed


def _weight_packed(header: Header, parts: _Parts) -> Known | None:
    """compressed-tensors' matrix."""
    scale = parts.headers.get("weight_scale")
    if len(header.shape) != 2 or scale is None:
        return None
    if header.type == "u8":
        rows, columns = header.shape[0], 2 * header.shape[1]
        storage = "in compressed-tensors' 4-bit floats"
        if parts.has("weight_scale", ("f8_e4m3",), rows, columns // 16) and parts.has(
            "weight_global_scale", ("f32",), 1
        ):
            over = lambda: parts.floats("weight_scale") / parts.floats("weight_global_scale")
            return fp4(parts.read, header, storage, 16, over)
        if parts.has("weight_scale", ("u8",), rows, columns // 32):
            powers = lambda: parts.array("weight_scale").view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
            return fp4(parts.read, header, storage, 32, powers)
        return Known((rows, columns), storage)
    if header.type != "i32" or not parts.has("weight_shape", ("i64",), 2):
        return None
    rows, columns = (int(n) for n in parts.array("weight_shape"))
    bits = header.shape[1] * _BITS // columns if columns > 0 else 0
    if rows != header.shape[0] or not 2 <= bits <= 8 or -(-columns * bits // _BITS) != header.shape[1]:
        return None
    storage, middle = f"in compressed-tensors' {bits}-bit integers", 2 ** (bits - 1)
    groups = scale.shape[1] if len(scale.shape) == 2 else 1
    zeros = "weight_zero_point" in parts.headers
    fits = parts.has("weight_scale", _SCALES, *((rows, groups) if len(scale.shape) == 2 else (1,)))
    fits &= not zeros or parts.has("weight_zero_point", ("i32",), -(-rows * bits // _BITS), groups)
    fits &= "weight_g_idx" not in parts.headers or parts.has("weight_g_idx", ("i32",), columns)
    if not fits or not _groups_fit(columns, groups):
        return Known((rows, columns), storage)

    def expand() -> StoredTensor:
        zero = np.full((rows, groups), middle, np.int16)
        if zeros:
            zero = codes(np.ascontiguousarray(parts.array("weight_zero_point").T), bits, rows).T
        scales = np.broadcast_to(parts.floats("weight_scale").reshape(-1, groups), (rows, groups))
        q = codes(parts.array("weight_packed"), bits, columns)
        return _scaled(q, zero, scales, _order(parts, "weight_g_idx", groups))

    return Known((rows, columns), storage, "i16" if zeros and bits == 8 else "i8", expand)


def _weight(header: Header, parts: _Parts) -> Known | None:
    """ModelOpt's NVFP4."""
    if header.type != "u8" or len(header.shape) != 2 or "comfy_quant" in parts.headers:
        return None
    rows, columns = header.shape[0], 2 * header.shape[1]
    second = parts.headers.get("weight_scale_2")
    if second is None or not parts.has("weight_scale", ("f8_e4m3",), rows, columns // 16):
        return None
    storage = "in NVFP4 without a comfy_quant, as ModelOpt's"
    if second.type != "f32" or math.prod(second.shape) != 1:
        return Known((rows, columns), storage)
    times = lambda: parts.floats("weight_scale") * parts.floats("weight_scale_2").reshape(-1)
    return fp4(parts.read, header, storage, 16, times)


def fp4(read: Read, header: Header, storage: str, group: int, scale: Callable[[], np.ndarray]) -> Known:
    """Codes of E2M1, the first in the lower half of a byte."""
    shape = (header.shape[0], 2 * header.shape[1])

    def expand() -> StoredTensor:
        packed = read(header)
        data = (packed >> np.uint8(4)) | (packed << np.uint8(4))
        with np.errstate(all="ignore"):  # what is not finite is reported, not warned of
            return StoredTensor("nvfp4_comfy", shape, data, Grouping(scale().reshape(-1), group))

    return Known(shape, storage, "nvfp4_comfy", expand)


def _data(header: Header, parts: _Parts) -> Known | None:
    """optimum-quanto's matrix; the shape of one of 2 or 4 bits is not in the file."""
    scale, storage = "weight._scale", "in optimum-quanto's weights"
    if scale not in parts.headers or len(header.shape) != 2:
        return None
    if header.type not in ("i8", "f8_e4m3", "f8_e5m2") or not parts.has(scale, _SCALES, header.shape[0], 1):
        return Known(header.shape, storage)

    def expand() -> StoredTensor:
        scaling = Scaling(parts.floats(scale), block=(1, header.shape[1]))
        return StoredTensor(header.type, header.shape, parts.array("weight._data"), scaling)

    return Known(header.shape, storage, header.type, expand)


_FORMATS = {"qweight": _qweight, "weight_packed": _weight_packed, "weight": _weight, "weight._data": _data}
