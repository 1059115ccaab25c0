"""Read weights whose scales are separate tensors: ComfyUI's 8-bit floats, int8 and 4-bit floats.

<layer>.weight        F8_E4M3, F8_E5M2 or I8
<layer>.weight_scale  F32 [] or [1]; [rows] or [rows, 1]; or [m, n], one for each block of a matrix (128 x 128 in
                      official FP8 text encoders, as <layer>.weight_scale_inv, and in convert_to_quant's files);
                      <layer>.scale_weight in older files, which are marked by a tensor named scaled_fp8
<layer>.comfy_quant   U8, a JSON text: {"format": "int8_tensorwise", "convrot": true, "convrot_groupsize": 256}; or
                      one entry a layer in the metadata, under _quantization_metadata
<layer>.input_scale   F32 [], for engines that multiply in 8 bits (older files: scale_input)

This module attaches each scale to its weight and drops these helper tensors from the list of tensors. Formats with
a scale per group of codes: scaled_groups.py and comfy_packed.py (ComfyUI), bitsandbytes.py (and its int8),
packed_integers.py (GPTQ, AWQ and others; zero points), sdnq.py, torchao.py. Formats that are only recognised, so
that the file can be identified: rotated codes with a scale for each block, and every format that a layer's
comfy_quant names and refsd does not know.
Source: ComfyUI, QUANTIZATION.md and comfy/ops.py; comfy_kitchen, TensorWiseINT8Layout; transformers,
integrations/finegrained_fp8.py; compressed-tensors, strategies channel, group and block.
"""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from refsd.files import bitsandbytes, comfy_packed, packed_integers, scaled_groups, sdnq, torchao
from refsd.files.comfy_packed import PACKED_FORMATS
from refsd.files.scaled_groups import GROUP_FORMATS, Joined, Read
from refsd.files.stored import Header, Weights, shown
from refsd.kernels.quant import convrot
from refsd.numerics.errors import BadInput
from refsd.numerics.printable import printable
from refsd.numerics.tensor import SCALAR_TYPES, Grouping, Scaling, StoredTensor

SCALES = ("weight_scale", "scale_weight", "weight_scale_inv")
UNUSED = ("input_scale", "scale_input")  # refsd ignores them: only engines that multiply in 8 bits need them
MARKER = "scaled_fp8"
# ComfyUI's name of a format -> type of the weight.
FORMATS = {
    "float8_e4m3fn": "f8_e4m3",
    "float8_e5m2": "f8_e5m2",
    "int8_tensorwise": "i8",
    # convert_to_quant's: the scale's shape tells what has one
    "float8_e4m3fn_rowwise": "f8_e4m3",
    "float8_e4m3fn_blockwise": "f8_e4m3",
    "int8_blockwise": "i8",
}
TYPES = frozenset(FORMATS.values())
SCALE_TYPES = ("f32", "f16", "bf16")
_BLOCK_SCALES = {  # type of scales for blocks -> dtype; f8_e8m0: powers of two (scale_fmt "ue8m0")
    **{type: SCALAR_TYPES[type] for type in SCALE_TYPES},
    "f8_e8m0": np.dtype(ml_dtypes.float8_e8m0fnu),
}
MAX_CONFIG = 4096  # bytes of JSON
ZERO_POINT = "weight_zero_point"  # of codes that do not stand around 0 (compressed-tensors)
_BLOCKS = (1, *(2**n for n in range(4, 11)))  # rows or columns under one scale
_PLAIN = ("weight", "bias")  # parts of a layer that are no helpers, whatever its format


class Scalings(NamedTuple):
    """The scales found in a file.

    scalings: weight name -> its scale, or a function that reads its scales per group, or codes and scales
    helpers:  names of the tensors that hold scales and settings
    changed:  weight name -> header with the real type and shape, for weights that the file lists as plain bytes
    unexpanded: weight name -> its storage in words, which refsd recognises but cannot expand
    expanded: weight name -> storage of a tool, in words, that refsd expands
    renamed:  name in the file -> name of the weight whose packed codes it holds
    """

    scalings: dict[str, Scaling | Callable[[], Grouping | StoredTensor]]
    helpers: set[str]
    changed: dict[str, Header]
    unexpanded: dict[str, str]
    expanded: dict[str, str]
    renamed: dict[str, str]

    def add(self, name: str, joined: Joined) -> None:
        self.scalings[name], self.changed[name] = joined.scaling, joined.header
        self.helpers.update(joined.helpers)

    def give_to(self, weights: Weights) -> None:
        """Leave a file's weights without the helpers, with their scales, real types and shapes."""
        weights.headers = {
            self.renamed.get(n, n): self.changed.get(n, header)
            for n, header in weights.headers.items()
            if n not in self.helpers
        }
        weights.scalings, weights.helpers = self.scalings, self.helpers
        weights.unexpanded, weights.expanded, weights.renamed = self.unexpanded, self.expanded, self.renamed


def find_scalings(path: Path, headers: Mapping[str, Header], metadata: Mapping[str, Any], read: Read) -> Scalings:
    """Find the scale of each weight. read: header -> the tensor's bytes, uint8.

    Raises BadInput for a scale that is missing, duplicate or of a shape that no format has.
    """
    configs = _layers(path, metadata)
    markers = {name for name in headers if name.rpartition(".")[2] == MARKER}
    found = Scalings({}, set(markers), {}, {}, {}, {})
    of_tools = packed_integers.find(path, headers, read, configs) | sdnq.find(path, headers, read)
    of_tools |= torchao.find(path, headers, metadata, read)
    for name, packed in of_tools.items():
        found.renamed[name], found.changed[name] = packed.name, packed.header
        if packed.expand is None:
            found.unexpanded[packed.name] = packed.storage
        else:
            found.scalings[packed.name], found.expanded[packed.name] = packed.expand, packed.storage
        found.helpers.update(helper for helper in packed.helpers if helper != name)
    for name, joined in bitsandbytes.find(path, headers, read).items():
        found.add(name, joined)
    for name, header in headers.items():
        layer, dot, last = name.rpartition(".")
        config_name = f"{layer}{dot}comfy_quant"
        described = layer in configs or config_name in headers
        if last != "weight" or name in found.renamed or (header.type not in TYPES and not described):
            continue
        if header.type == "i8" and f"{layer}{dot}{bitsandbytes.ROWS}" in headers:
            scaling, helpers = bitsandbytes.rows_of_int8(f"{path}: tensor {shown(name)}", name, headers, read)
            found.scalings[name] = scaling
            found.helpers.update(helpers)
            continue
        names = [f"{layer}{dot}{part}" for part in SCALES if f"{layer}{dot}{part}" in headers]
        at = f"{path}: tensor {shown(name)}"
        if config_name in headers:
            configs[layer] = _config(at, headers[config_name], read)
            found.helpers.add(config_name)
        config = configs.get(layer)
        kind = config.get("format") if config is not None else None
        named = kind if isinstance(kind, str) else ""
        joined = None
        if named in GROUP_FORMATS:
            joined = scaled_groups.join(at, name, named, headers, read)
        elif named in PACKED_FORMATS:
            joined = comfy_packed.join(at, name, config or {}, headers, read)
            if joined is not None:
                found.expanded[name] = f"in ComfyUI's {named}"
        if joined is not None:
            found.add(name, joined)
            found.helpers.update(n for part in UNUSED if (n := f"{layer}{dot}{part}") in headers)
            continue
        if named and named not in FORMATS:
            found.unexpanded[name] = f"in the format {printable(named, 60)}"
            if (header.type == "u8" or named in PACKED_FORMATS) and header.shape:  # two codes a byte
                found.changed[name] = header._replace(shape=(*header.shape[:-1], 2 * header.shape[-1]))
            within = (n for n in headers if n.rpartition(".")[0] == layer and n.rpartition(".")[2] not in _PLAIN)
            found.helpers.update(within)
            continue
        rotation = 0 if config is None else _rotation(at, header, config)
        if not names:
            if config is not None or (markers and header.type != "i8" and len(header.shape) > 1):
                raise BadInput(
                    f"{at}: {header.type} without its scale: {shown(f'{layer}{dot}{SCALES[0]}')} is missing"
                )
            continue
        if len(names) > 1:
            raise BadInput(f"{at}: two scales, {' and '.join(map(shown, names))}; one expected")
        scale = headers[names[0]]
        block, zero_point = _block(header, scale), f"{layer}{dot}{ZERO_POINT}"
        zero = headers.get(zero_point)
        expand = zero and packed_integers.minus_zero_points(header, scale, zero, read)
        if expand:
            found.scalings[name], found.changed[name] = expand, header._replace(type="i16")
            found.helpers.add(zero_point)
        elif zero or (block and rotation):
            what = "zero points" if zero else f"rotated rows, a scale for each {_words(block)}"
            found.unexpanded[name] = f"in {header.type} with {what}"
            found.helpers.update([zero_point] if zero else ())
        elif block:
            shape = (-(-header.shape[0] // block[0]), -(-header.shape[1] // block[1]))
            scales = read(scale).view(_BLOCK_SCALES[scale.type]).astype(np.float32).reshape(shape)
            found.scalings[name] = Scaling(scales, block=block)
        else:
            found.scalings[name] = Scaling(_scale(at, header, scale, names[0], read), rotation)
        found.helpers.update(names, (n for part in UNUSED if (n := f"{layer}{dot}{part}") in headers))
    return found


def _layers(path: Path, metadata: Mapping[str, Any]) -> dict[str, dict]:
    text = metadata.get("_quantization_metadata")
    if text is None:
        return {}
    content = _json(f"{path}: _quantization_metadata", text)
    layers = content.get("layers", {})
    if not isinstance(layers, dict) or not all(isinstance(config, dict) for config in layers.values()):
        raise BadInput(f"{path}: _quantization_metadata: layers must map names to objects")
    return dict(layers)


def _config(at: str, header: Header, read: Read) -> dict:
    if header.type != "u8" or header.nbytes > MAX_CONFIG:
        raise BadInput(
            f"{at}: its comfy_quant is {header.type} of {header.nbytes} bytes; a short JSON text expected"
        )
    return _json(f"{at}: its comfy_quant", read(header).tobytes())


def _json(what: str, text: str | bytes) -> dict:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise BadInput(f"{what} is not a JSON object")
    return content


def _rotation(at: str, header: Header, config: dict) -> int:
    kind = config.get("format")
    if not isinstance(kind, str) or FORMATS.get(kind) != header.type:
        raise BadInput(
            f"{at}: {header.type} in the format {shown(str(kind)[:60])}; refsd reads "
            f"{', '.join(f'{name} ({type})' for name, type in FORMATS.items())}, {', '.join(GROUP_FORMATS)}"
        )
    if not config.get("convrot"):
        return 0
    group = config.get("convrot_groupsize", convrot.GROUP)
    power = type(group) is int and 4 <= group <= 4**10 and group == 4 ** (group.bit_length() // 2)
    if header.type != "i8" or len(header.shape) != 2 or not power or header.shape[1] % group:
        raise BadInput(
            f"{at}: ConvRot in groups of {str(group)[:20]}, shape {list(header.shape)}; an i8 matrix expected, "
            "and a power of 4 that divides its rows"
        )
    return group


def _block(header: Header, scale: Header) -> tuple[int, int] | tuple[()]:
    """Return the rows and columns that share a scale; () for one scale, one a row of int8, or what does not fit."""
    shape = scale.shape
    while len(shape) > 2 and shape[-1] == 1:
        shape = shape[:-1]
    if (
        len(header.shape) != 2
        or not math.prod(header.shape)
        or scale.type not in _BLOCK_SCALES
        or math.prod(shape) < 2
    ):
        return ()
    if shape in (header.shape[:1], (header.shape[0], 1)):
        return () if header.type == "i8" else (1, header.shape[1])
    if len(shape) != 2:
        return ()
    sides = [
        next((block for block in (*_BLOCKS, n) if -(-n // block) == count), 0)
        for n, count in zip(header.shape, shape, strict=True)
    ]
    return (sides[0], sides[1]) if all(sides) else ()


def _words(block: tuple[int, int] | tuple[()]) -> str:
    return "block of {} x {}".format(*block) if block else "row"


def _scale(at: str, header: Header, scale: Header, name: str, read: Read) -> np.ndarray:
    if not math.prod(header.shape) or not header.shape:
        raise BadInput(f"{at}: shape {list(header.shape)} has a scale; a matrix expected")
    rows = header.shape[0]
    fits = math.prod(scale.shape) == 1 or (header.type == "i8" and scale.shape in ((rows,), (rows, 1)))
    if scale.type not in SCALE_TYPES or not fits:
        wanted = f"one number, or {[rows, 1]}" if header.type == "i8" else "one number"
        raise BadInput(
            f"{at}: its scale {shown(name)} is {scale.type} {list(scale.shape)}; f32, {wanted}, expected"
        )
    return read(scale).view(SCALAR_TYPES[scale.type]).astype(np.float32).reshape(-1)
