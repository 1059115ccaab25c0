"""The GGUF format: magic, version, counts, key-value metadata, tensor infos, aligned data.

GGUF writes dimensions innermost first; this module reverses them into torch's order.
Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; ggml/src/gguf.cpp.
"""

import math
import struct
from pathlib import Path
from typing import Any, NamedTuple

from refsd.files.gguf_layout import align, check_layout
from refsd.files.gguf_types import TYPES
from refsd.files.stored import Content, Header, Weights, read_content, shown
from refsd.golden.file_kinds import START, kind
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import shape_problem

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_TENSORS = 2**18
MAX_ENTRIES = 2**16  # of metadata
MAX_ARRAY = 2**24  # elements of all arrays whose elements are texts or arrays
MAX_DEPTH = 3  # arrays in arrays
MAX_TEXT = 2**24  # bytes of a text
MAX_HEADER = 2**28  # bytes
MAX_DIMS = 4
KEPT_ARRAY = 16  # elements: numeric arrays up to this length are kept, others become Skipped


# Numeric types of metadata values: number in the file -> struct code. 8 is text, 9 an array.
NUMBERS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
TEXT, _ARRAY = 8, 9


class Skipped(NamedTuple):
    """A metadata array that was checked but not kept; gguf_arrays.py reads it.

    of: number of the element type in the file
    at: offset of the first element in the file, in bytes
    """

    length: int
    of: int
    at: int


def open_gguf(path: Path, mapped: bool = True) -> Weights:
    """Read the header and check it against the file, before allocating any size that it claims. Raises BadInput."""
    data = read_content(path, mapped)
    cursor = _Cursor(path, data)
    if cursor.take(4, "the magic") != MAGIC:
        found = kind(data[:START]) or "something else: it does not begin with GGUF"
        raise BadInput(f"{path}: not GGUF, but {found}")
    version = cursor.number("<I", "the version")
    if version not in VERSIONS:
        swapped = version in {v << 24 for v in VERSIONS}
        found = "big-endian" if swapped else f"version {version}"
        raise BadInput(f"{path}: GGUF {found}; refsd reads little-endian version 2 and 3: convert it with gguf-py")
    tensors = cursor.count("tensors", MAX_TENSORS, least=8 + 4 + 4 + 8)
    entries = cursor.count("metadata entries", MAX_ENTRIES, least=8 + 4 + 1)
    metadata: dict[str, Any] = {}
    for i in range(entries):
        key = cursor.text(f"key {i} of the metadata")
        if key in metadata:
            raise BadInput(f"{path}: the metadata has {shown(key)} twice")
        what = f"metadata {shown(key)}"
        metadata[key] = cursor.value(cursor.number("<I", what), what)
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or not 0 < alignment <= 2**20 or alignment & (alignment - 1):
        raise BadInput(f"{path}: general.alignment is {str(alignment)[:40]}; a power of two up to 2^20 expected")
    headers: dict[str, Header] = {}
    for i in range(tensors):
        name = cursor.text(f"the name of tensor {i}")
        if name in headers:
            raise BadInput(f"{path}: tensor {shown(name)} is there twice")
        headers[name] = _tensor(cursor, name, metadata.get(f"comfy.gguf.orig_shape.{name}"), alignment)
    start = align(cursor.at, alignment)
    headers = {name: h._replace(offset=start + h.offset) for name, h in headers.items()}
    check_layout(path, headers, start, len(data), alignment)
    return Weights(path, "gguf", headers, metadata, data)


class _Cursor:
    """Reads the header value by value; checks every step against the end of the file."""

    def __init__(self, path: Path, data: Content):
        self.path = path
        self.data = data
        self.at = 0
        self.elements = 0

    def skip(self, n: int, what: str) -> None:
        if n > len(self.data) - self.at:
            raise BadInput(
                f"{self.path}: cut short in {what}: {n} bytes expected at byte {self.at}, "
                f"{len(self.data) - self.at} found; download it again"
            )
        if n > MAX_HEADER - self.at:
            raise BadInput(f"{self.path}: the header is longer than {MAX_HEADER} bytes in {what}")
        self.at += n

    def take(self, n: int, what: str) -> bytes:
        self.skip(n, what)
        return self.data[self.at - n : self.at]

    def number(self, code: str, what: str):
        return struct.unpack(code, self.take(struct.calcsize(code), what))[0]

    def count(self, what: str, most: int, least: int) -> int:
        n = self.number("<Q", f"the number of {what}")
        if n > most or n * least > len(self.data) - self.at:
            raise BadInput(
                f"{self.path}: the header claims {n} {what}; the file has room for fewer (at most {most})"
            )
        return n

    def text(self, what: str) -> str:
        length = self.number("<Q", what)
        if length > MAX_TEXT:
            raise BadInput(f"{self.path}: {what} claims to be {length} bytes long, at most {MAX_TEXT} expected")
        raw = self.take(length, what)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise BadInput(f"{self.path}: {what} is not UTF-8 (byte {error.start}: {raw[:40]!r})") from None

    def value(self, kind: int, what: str, depth: int = 0):
        if kind in NUMBERS:
            return self.number(NUMBERS[kind], what)
        if kind == TEXT:
            return self.text(what)
        if kind != _ARRAY or depth == MAX_DEPTH:
            found = "too many nested arrays" if kind == _ARRAY else f"value type {kind}, 0 to 12 expected"
            raise BadInput(f"{self.path}: {what}: {found}")
        of = self.number("<I", what)
        n = self.number("<Q", what)
        start = self.at
        if of in NUMBERS:
            if n <= KEPT_ARRAY:
                return tuple(self.number(NUMBERS[of], what) for _ in range(n))
            self.skip(n * struct.calcsize(NUMBERS[of]), what)
            return Skipped(n, of, start)
        self.elements += n
        if self.elements > MAX_ARRAY or n * 8 > len(self.data) - self.at:
            raise BadInput(f"{self.path}: {what}: an array claims {n} elements; the file has room for fewer")
        for _ in range(n):
            self.value(of, what, depth + 1)
        return Skipped(n, of, start)


def _tensor(cursor: _Cursor, name: str, original: Any, alignment: int) -> Header:
    at = f"{cursor.path}: tensor {shown(name)}"
    what = f"tensor {shown(name)}"
    rank = cursor.number("<I", what)
    if rank > MAX_DIMS:
        raise BadInput(f"{at}: {rank} dimensions, at most {MAX_DIMS} expected")
    shape = tuple(cursor.number("<Q", what) for _ in range(rank))[::-1]
    number = cursor.number("<I", what)
    offset = cursor.number("<Q", what)
    if number not in TYPES:
        raise BadInput(f"{at}: unknown type {number}; the file may need a newer refsd, or is damaged")
    elements = math.prod(shape)
    if problem := shape_problem(shape):
        raise BadInput(f"{at}: shape {list(shape)}: {problem}")
    kind = TYPES[number]
    if (shape[-1] if shape else 1) % kind.block:
        turned = len(shape) > 1 and shape[0] % kind.block == 0
        hint = ": are its dimensions stored in the wrong order (outermost first)? Convert the file again"
        raise BadInput(
            f"{at}: rows of {shape[-1] if shape else 1} elements; {kind.name} needs a multiple of {kind.block}"
            f"{hint if turned else ''}"
        )
    if offset % alignment:
        raise BadInput(f"{at}: offset {offset} is not a multiple of the alignment {alignment}")
    if original is not None:
        whole = isinstance(original, tuple) and all(type(size) is int and size >= 0 for size in original)
        if not whole or math.prod(original) != elements or shape_problem(original):
            raise BadInput(f"{at}: comfy.gguf.orig_shape does not fit the shape {list(shape)}")
        shape = original
    return Header(kind.name, shape, offset, elements // kind.block * kind.bytes)
