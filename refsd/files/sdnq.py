"""Read weights that SDNQ, SD.Next's quantiser, has saved.

<layer>.weight      codes (sdnq_codes.py) in the weight's shape; [O, groups, size] if its rows are cut into groups;
                    or packed, in a shape of their own: the weight's is then the scale's, and their number's
<layer>.scale       [O, 1] or [O, groups, 1], a filter's sides behind them; [1, 1]: one for all. With a codebook the
                    last 1 is 2^bits, the value of each code
<layer>.zero_point  of unsigned codes: code scale + zero_point
<layer>.scale_2, scale_zero_point; zero_point_scale, zero_point_2   where scale and zero_point are codes themselves
<layer>.svd_up, svd_down   [O, R], [R, I]: up down is added

Of layers that the tool multiplies in 8 bits, svd_up and svd_down are transposed; so are int8 and FP8 with a scale a
row: [1, O]. config.json beside the file says, under quantization_config, what the codes are, and whether Hadamard's
matrix has rotated the columns in groups.
The tool rounds to the types of the scales, of svd_up and of the layer, code scale + zero_point once, as a fused
multiply-add does; refsd the last sum, to float32.
Source: sdnq 0.2.8: quantizer.py, dequantizer.py, quant_utils.py, utils.py.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from refsd.files.json_files import read_json
from refsd.files.packed_integers import Packed
from refsd.files.scaled_groups import Read
from refsd.files.sdnq_codes import DTYPES, CodeType, code_type, word_bits
from refsd.files.stored import Header
from refsd.numerics.printable import printable
from refsd.numerics.tensor import Scaling, StoredTensor, stored

_CONFIGS = ("quantization_config.json", "config.json")
_SCALE = ("scale", "scale_2", "scale_zero_point")
_ZERO = ("zero_point", "zero_point_scale", "zero_point_2")
_BRANCH = ("svd_up", "svd_down")
_CODES = ("i8", "u8", "i16", "u16", "f8_e4m3", "f8_e5m2")  # no float weight has such a type
_SCALED = ("i8", "i16", "f8_e4m3", "f8_e5m2")  # types of a tensor with a Scaling
_FLOATS = ("f32", "f16", "bf16")
_AT_LEAST = re.compile(r"(?:minimum)?[-_]?(u?)(?:int)?(\d{1,2})[-_]?(?:bits?)?")
# Side -> Hadamard's matrix. That of a power of 4 is a Kronecker product of the first, that of another power of 2
# of the second.
_HADAMARD = {
    4: np.ones((4, 4)) - 2 * np.fliplr(np.eye(4)),
    2: np.array([[1.0, 1.0], [1.0, -1.0]]),
}


class _NotSaid(Exception):
    """What neither the tensors of a layer nor its settings say, in words that follow "in SDNQ's int8"."""


class _Layout(NamedTuple):
    """How a weight lies in its file.

    shape:      of the weight
    codes:      of its codes
    axis:       of the codes, along which a scale or a codebook holds; None: one for all
    transposed: whether codes, scales and low-rank branch are
    """

    shape: tuple[int, ...]
    codes: tuple[int, ...]
    axis: int | None
    transposed: bool = False


class _Layer(NamedTuple):
    """prefix: of the names of its tensors; settings: of the layer, as config.json has them"""

    prefix: str
    settings: Mapping[str, Any]
    headers: Mapping[str, Header]
    read: Read

    def header(self, part: str, types: tuple[str, ...] = _FLOATS) -> Header:
        header = self.headers.get(f"{self.prefix}{part}")
        if header is None or header.type not in types:
            raise _NotSaid(f"without {part}" if header is None else f"whose {part} is {header.type}")
        return header

    def has(self, part: str) -> bool:
        return f"{self.prefix}{part}" in self.headers

    def array(self, header: Header) -> np.ndarray:
        return self.read(header).view(DTYPES[header.type]).reshape(header.shape)

    def floats(self, part: str) -> np.ndarray:
        return self.array(self.header(part)).astype(np.float32)


def find(path: Path, headers: Mapping[str, Header], read: Read) -> dict[str, Packed]:
    """Return each weight of codes, also without its scale. Raises BadInput for a malformed config.json."""
    weights = [name for name in headers if name.rpartition(".")[2] == "weight"]
    scaled = {name for name in weights if f"{name.removesuffix('weight')}scale" in headers}
    config = _config(path.parent) if scaled else None
    found = {}
    for name in weights:
        prefix, header = name.removesuffix("weight"), headers[name]
        helpers = [helper for part in (*_SCALE, *_ZERO, *_BRANCH) if (helper := f"{prefix}{part}") in headers]
        if config is not None and (name in scaled or header.type in _CODES):
            found[name] = _packed(name, _Layer(prefix, _settings(config, name), headers, read), helpers)
        elif name in scaled and header.type in _CODES:
            storage = f"in {header.type} with a scale, as SDNQ's, without the config.json that says more"
            found[name] = Packed(name, header, storage, helpers)
    return found


def _config(folder: Path) -> dict[str, Any] | None:
    for name in _CONFIGS:
        content = read_json(folder / name) if (folder / name).is_file() else {}
        config = content.get("quantization_config", content)
        if isinstance(config, dict) and config.get("quant_method") == "sdnq":
            return config
    return None


def _settings(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return what a config says of the weight `name`."""
    settings, others = dict(config), _mapping(config.get("modules_quant_config"))
    if (key := _matching(name, others)) is not None:
        settings |= _mapping(others[key])
    for kind, modules in _mapping(config.get("modules_dtype_dict")).items():
        kind = kind.lower()
        if _matching(name, [modules] if isinstance(modules, str) else modules) is None:
            continue
        if not kind.startswith("minimum") and not kind.endswith(("bit", "bits")):
            settings["weights_dtype"] = kind
            break
        least, known = _AT_LEAST.fullmatch(kind), code_type(settings.get("weights_dtype"))
        if least and known and known.bits < int(least[2]):
            settings["weights_dtype"] = f"{'u' if least[1] or int(least[2]) <= 4 else ''}int{least[2]}"
            break
    return settings


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _matching(name: str, patterns: object) -> str | None:
    """Return the first pattern that fits: the name, a part of it, ".its beginning", or one with * for letters."""
    for pattern in patterns if isinstance(patterns, Iterable) else ():
        if not isinstance(pattern, str):
            continue
        if pattern.startswith("."):
            if name.startswith(pattern[1:]):
                return pattern
        elif pattern in (name, *name.split(".")) or ("*" in pattern and _in_order(name, pattern.split("*"))):
            return pattern
    return None


def _in_order(name: str, parts: list[str]) -> bool:
    """True if a name begins with the first part and has the others behind it, in this order."""
    at = len(parts[0]) if name.startswith(parts[0]) else -1
    for part in parts[1:]:
        found = name.find(part, at) if at >= 0 else -1
        at = found + len(part) if found >= 0 else -1
    return at >= 0


def _packed(name: str, layer: _Layer, helpers: list[str]) -> Packed:
    """Return a layer's weight, expanded if the tensors and the settings say how."""
    kind, header = layer.settings.get("weights_dtype"), layer.headers[name]
    storage = f"in SDNQ's {printable(str(kind), 20)}"
    try:
        code = code_type(kind)
        if code is None or header.type not in code.stored:
            raise _NotSaid(f"stored as {header.type}")
        wanted = [_SCALE, _ZERO] if code.unsigned and not layer.settings.get("use_codebook") else [_SCALE]
        scales = [_floats(layer, *parts) for parts in wanted]
        layout = _layout(layer, header, code, [shape for shape, _ in scales])
        header = header._replace(shape=layout.shape)
        branch, rotation = _branch(layer, layout), _rotation(layer.settings, layout.shape)
    except _NotSaid as reason:
        return Packed(name, header, f"{storage} {reason}", helpers)
    type = "f32"
    if (
        len(wanted) == 1
        and not (layer.settings.get("use_codebook") or branch or rotation)
        and len(layout.shape) == 2
    ):
        if code.packed and code.values is None:
            type = "i8" if code.bits < 8 else "i16"
        elif code.stored[0] in _SCALED and code.values is None:
            type = code.stored[0]

    def expand() -> StoredTensor:
        numbers = code.numbers(layer.array(layer.header("weight", code.stored))).reshape(layout.codes)
        scale, *zero = (read().T if layout.transposed else read() for _, read in scales)
        numbers = numbers.T if layout.transposed else numbers
        if type != "f32":
            return _with_scales(numbers.astype(DTYPES[type]).reshape(layout.shape), scale, type)
        with np.errstate(all="ignore"):  # what is not finite is reported, not warned of
            if layer.settings.get("use_codebook"):
                y = _levels(scale, numbers.astype(np.intp), layout.axis)
            else:
                y = sum(zero, start=numbers.astype(np.float64) * scale)
            if branch or rotation:
                y = y.reshape(len(y), -1).astype(np.float64, copy=False)
                y = _rotated(y + branch() if branch else y, rotation)
        y = stored(np.ascontiguousarray(y.reshape(layout.shape), np.float32))
        group = 0 if layer.settings.get("use_codebook") else math.prod(layout.codes) // max(1, scale.size)
        return y._replace(coded=(code.bits, group))

    return Packed(name, header._replace(type=type), storage, helpers, expand)


def _floats(layer: _Layer, part: str, second: str, offset: str) -> tuple[tuple[int, ...], Callable[[], np.ndarray]]:
    """Return the shape of a layer's scales or zero points, and a function that reads them."""
    if not layer.has(second):
        return layer.header(part).shape, lambda: layer.floats(part)
    kind = layer.settings.get(f"{part}_dtype") or layer.settings.get("scale_dtype")
    code, table = code_type(kind), bool(layer.settings.get("use_codebook_scale"))
    if code is None or code.packed or (table and not code.is_index):
        raise _NotSaid(f"whose {part} is packed, in a shape that is not in the file")
    header = layer.header(part, code.stored)
    sizes = {second: 2**code.bits if table else 1, **({offset: 1} if code.unsigned and not table else {})}
    for other, size in sizes.items():
        if math.prod(layer.header(other).shape) != size:
            raise _NotSaid(f"whose {other} is no {size} numbers")

    def read() -> np.ndarray:
        numbers = code.numbers(layer.array(header))
        first, *more = (layer.floats(other).reshape(-1) for other in sizes)
        y = first[numbers.astype(np.intp)] if table else sum(more, start=numbers.astype(np.float64) * first)
        return y.astype(np.float32)

    return header.shape, read


def _layout(layer: _Layer, header: Header, code: CodeType, shapes: list[tuple[int, ...]]) -> _Layout:
    """Work out how a weight lies from the shapes of its codes and of its scales and zero points."""
    scale, count = shapes[0], math.prod(header.shape)
    count = count * word_bits(code.bits) // code.bits if code.packed else count
    codebook = bool(layer.settings.get("use_codebook"))
    one_for_all = len(scale) == 1 if codebook else math.prod(scale) == 1
    mark = 2**code.bits if codebook else 1
    if any(shape != scale for shape in shapes):
        raise _NotSaid("whose zero_point has another shape than its scale")
    if codebook and not code.is_index:
        raise _NotSaid("with a codebook")
    vector = len(header.shape) < 2 and not code.packed
    if not count or vector or (codebook and one_for_all and scale != (mark,)):
        raise _NotSaid(f"of shape {list(header.shape)} with a scale of {list(scale)}")
    if one_for_all and code.packed:
        raise _NotSaid("packed, in a shape that is not in the file")
    if one_for_all and (codebook or len(scale) == len(header.shape)):
        if layer.settings.get("use_quantized_matmul") and len(header.shape) == 2:
            raise _NotSaid("with one scale, which do not say whether they are transposed")
        return _Layout(header.shape, header.shape, None)
    if not (code.packed or codebook) and len(header.shape) == 2 and scale == (1, header.shape[1]):
        return _Layout(header.shape[::-1], header.shape, 1, transposed=True)
    axes = (2, 1) if codebook and len(scale) == 3 else (1, 2)
    axis = next((axis for axis in axes if scale[axis : axis + 1] == (mark,)), 0)
    codes = (*scale[:axis], count // max(1, math.prod(scale) // mark), *scale[axis + 1 :])
    if not axis or math.prod(codes) != count or (not code.packed and codes != header.shape):
        raise _NotSaid(f"of shape {list(header.shape)} with a scale of {list(scale)}")
    return _Layout(codes if axis == 1 else (codes[0], codes[1] * codes[2], *codes[3:]), codes, axis)


def _branch(layer: _Layer, layout: _Layout) -> Callable[[], np.ndarray] | None:
    """Return a function that multiplies the low-rank branch out; None without one."""
    if not layer.has(_BRANCH[0]):
        return None
    up, down = (layer.header(part).shape for part in _BRANCH)
    of = (layout.shape[0], math.prod(layout.shape[1:]))
    if len(up) != 2 or len(down) != 2:
        raise _NotSaid(f"with a low-rank branch of {list(up)} and {list(down)}")
    plain, turned = (up[0], down[1], up[1]) == (*of, down[0]), (up[1], down[0], up[0]) == (*of, down[1])
    if plain == turned:
        raise _NotSaid(f"with a low-rank branch of {list(up)} and {list(down)}")

    def product() -> np.ndarray:
        first, second = (layer.floats(part).astype(np.float64) for part in _BRANCH)
        return (second @ first).T if turned else first @ second

    return product


def _rotation(settings: Mapping[str, Any], shape: tuple[int, ...]) -> int:
    """Return the size of the groups in which columns are rotated; 0: they are not."""
    if not settings.get("use_hadamard"):
        return 0
    group = settings.get("hadamard_group_size")
    if type(group) is not int or group < 1:
        raise _NotSaid(f"whose hadamard_group_size is {printable(str(group), 20)}")
    group = 1 << (min(group, shape[1]) - 1).bit_length()
    while shape[1] % group:
        group //= 2
    return group if group >= 4 else 0


def _rotated(y: np.ndarray, group: int) -> np.ndarray:
    """Rotate rows in groups: y H, where H is its own inverse. y: float64 [R, C]"""
    if not group:
        return y
    level = _HADAMARD[4 if group.bit_length() % 2 else 2]
    shape, step = y.shape, 1
    while step < group:
        y = level @ y.reshape(-1, len(level), step)
        step *= len(level)
    return y.reshape(shape) / math.sqrt(group)


def _levels(table: np.ndarray, codes: np.ndarray, axis: int | None) -> np.ndarray:
    return table[codes] if axis is None else np.take_along_axis(table, codes, axis)


def _with_scales(codes: np.ndarray, scale: np.ndarray, type: str) -> StoredTensor:
    """codes: [O, I]; scale: [O, 1], [O, groups, 1] or one"""
    rows, columns = codes.shape
    groups = scale.shape[1]
    of_groups = np.broadcast_to(scale.reshape(-1, groups), (rows, groups))
    return StoredTensor(
        type, codes.shape, codes, Scaling(np.ascontiguousarray(of_groups), block=(1, columns // groups))
    )
