"""Read the safetensors format: the header's length in 8 bytes, a JSON header, the data without holes.

Source: https://github.com/huggingface/safetensors, README "Format".
"""

import json
import math
from collections import Counter
from pathlib import Path

import numpy as np

from refsd.files.scaled import find_scalings
from refsd.files.stored import Content, Header, Weights, read_content, shown
from refsd.golden.wording import counted
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import shape_problem

MAX_HEADER = 100_000_000  # bytes, as in the safetensors library
MAX_VALUES = 4_000_000  # JSON values in a header; limits the memory that they take

# name in the file -> (our name, bits an element)
TYPES = {
    "F64": ("f64", 64),
    "F32": ("f32", 32),
    "F16": ("f16", 16),
    "BF16": ("bf16", 16),
    "I64": ("i64", 64),
    "I32": ("i32", 32),
    "I16": ("i16", 16),
    "I8": ("i8", 8),
    "U8": ("u8", 8),
    "BOOL": ("bool", 8),
    "U64": ("u64", 64),
    "U32": ("u32", 32),
    "U16": ("u16", 16),
    "C64": ("c64", 64),
    "F8_E4M3": ("f8_e4m3", 8),
    "F8_E5M2": ("f8_e5m2", 8),
    "F8_E8M0": ("f8_e8m0", 8),
    "F8_E4M3FNUZ": ("f8_e4m3fnuz", 8),
    "F8_E5M2FNUZ": ("f8_e5m2fnuz", 8),
    "F6_E2M3": ("f6_e2m3", 6),
    "F6_E3M2": ("f6_e3m2", 6),
    "F4": ("f4", 4),
}


def open_safetensors(path: Path, mapped: bool = True) -> Weights:
    """Read the header and check it against the file, before allocating any size that it claims. Raises BadInput."""
    data = read_content(path, mapped)
    if len(data) < 8:
        raise BadInput(f"{path}: not safetensors: {len(data)} bytes, at least 8 expected; is it complete?")
    length = int.from_bytes(data[:8], "little")
    if length > len(data) - 8 or length > MAX_HEADER:
        raise BadInput(
            f"{path}: not safetensors, or cut short: the header claims {length} bytes, "
            f"at most {min(len(data) - 8, MAX_HEADER)} expected; download or export it again"
        )
    header = _json_header(path, data, length)
    metadata = header.pop("__metadata__", None)
    if metadata is None:
        metadata = {}
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise BadInput(f"{path}: __metadata__ in the header must map text to text; export the file again")
    start = 8 + length
    headers = {name: _tensor(path, name, entry, start) for name, entry in header.items()}
    _no_holes(path, headers, start, len(data))
    weights = Weights(path, "safetensors", headers, metadata, data)
    read = lambda header: np.frombuffer(data, np.uint8, header.nbytes, header.offset)
    find_scalings(path, headers, metadata, read).give_to(weights)
    return weights


def _json_header(path: Path, data: Content, length: int) -> dict:
    raw = data[8 : 8 + length]
    values = raw.count(b",") + raw.count(b"[") + raw.count(b"{")
    if values > MAX_VALUES:
        raise BadInput(f"{path}: the header has {values} JSON values, at most {MAX_VALUES} expected")

    def unique(pairs):
        found = dict(pairs)
        if len(found) != len(pairs):
            (twice, _), *_ = Counter(name for name, _ in pairs).most_common(1)
            raise BadInput(f"{path}: the header names {shown(twice)} twice; export the file again")
        return found

    try:
        header = json.loads(raw.decode("utf-8"), object_pairs_hook=unique)
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: the header is not UTF-8 at byte {8 + error.start}; not safetensors?") from None
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path}: the header is not JSON ({_one_line(error)}); not safetensors?") from None
    if not isinstance(header, dict):
        raise BadInput(f"{path}: the header is a JSON {type(header).__name__}, an object expected")
    return header


def _tensor(path: Path, name: str, entry, start: int) -> Header:
    at = f"{path}: tensor {shown(name)}"
    try:
        name.encode()
    except UnicodeEncodeError:
        raise BadInput(f"{at}: the name is not valid Unicode; export the file again") from None
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise BadInput(f"{at}: dtype, shape and data_offsets expected in the header, and nothing else")
    kind, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(kind, str) or kind not in TYPES:
        raise BadInput(f"{at}: unknown dtype {shown(str(kind)[:200])}; the format has {', '.join(TYPES)}")
    if not _whole_numbers(shape):
        raise BadInput(f"{at}: shape must be whole numbers, none negative; found {ascii(shape)[:60]}")
    if problem := shape_problem(shape):
        raise BadInput(f"{at}: shape {ascii(shape)[:60]}: {problem}")
    if not _whole_numbers(offsets) or len(offsets) != 2:
        raise BadInput(f"{at}: data_offsets must be two whole numbers, none negative; found {ascii(offsets)[:60]}")
    ours, bits = TYPES[kind]
    begin, end = offsets
    elements = math.prod(shape)
    if elements * bits % 8 or (end - begin) * 8 != elements * bits:
        raise BadInput(
            f"{at}: {kind} {shape} takes {elements * bits // 8} bytes, data_offsets give {_short(end - begin)}; "
            "export the file again"
        )
    return Header(ours, tuple(shape), start + begin, end - begin)


def _no_holes(path: Path, headers: dict[str, Header], start: int, size: int) -> None:
    at = start
    for name, header in sorted(headers.items(), key=lambda item: (item[1].offset, item[1].nbytes)):
        if header.offset != at:
            what = "overlaps another" if header.offset < at else "leaves a hole before it"
            raise BadInput(
                f"{path}: tensor {shown(name)} {what}: it begins at byte {_short(header.offset - start)} of the "
                f"data, {at - start} expected; export the file again"
            )
        at += header.nbytes
    if at > size:
        raise BadInput(
            f"{path}: the file is cut short: {size} bytes, {_short(at)} expected from the header; download it again"
        )
    if at < size:
        raise BadInput(
            f"{path}: all tensors are there, and {counted(size - at, 'byte')} more behind the last one, which the "
            f"safetensors library refuses and ComfyUI ignores: cut the file to {at} bytes "
            f"(`truncate -s {at} FILE`); downloading it again gives the same"
        )


def _whole_numbers(values) -> bool:
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)


def _short(number: int) -> str:
    return str(number) if abs(number) < 10**20 else "more than 10^20"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:100]
