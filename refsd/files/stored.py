"""Weights: the tensors of a file by name; the file is mapped, and each tensor read on access.

A mapped file must not change while it is in use. If another process truncates it, the system ends this process
with SIGBUS as soon as it reads beyond the new end; the command line turns that into one line and exit code 2
(numerics/mapped_files.py). A program that must go on opens files with mapped=False, which reads the whole file into
memory once.
"""

import mmap
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from refsd.golden.input_file import open_input
from refsd.kernels.quant import BLOCK_TYPES
from refsd.numerics import mapped_files
from refsd.numerics.errors import BadInput
from refsd.numerics.printable import printable
from refsd.numerics.tensor import GROUPED_TYPES, SCALAR_TYPES, Grouping, Scaling, StoredTensor

LARGE = 2**20  # bytes; only tensors of at least this size give their memory back
EXPECTED = "a .safetensors, .gguf or torch file (.ckpt, .pt, .pth, .bin)"

# The content of a file: mapped, or read into memory.
Content = mmap.mmap | bytes


class Header(NamedTuple):
    """A tensor's entry in the header of a file.

    type:   as StoredTensor.type; also types of the format that refsd cannot read
    shape:  in torch's order
    offset: position of the first byte in the file
    nbytes: size in the file
    """

    type: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class NamedTensors(Mapping[str, StoredTensor]):
    """Tensors by name, each read or made on access. A class of them says `names`, which `in` asks."""

    names: Collection[str]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self.names


class Weights(Mapping[str, StoredTensor]):
    """The tensors of one file, under the file's own names.

    path:     the file
    format:   "safetensors", "gguf" or "pickle"
    headers:  name -> Header; available without reading a tensor
    metadata: the header's other entries
    scalings: name -> scale of a tensor's values; for scales per group, a function that reads them, or the whole
    helpers:  names in the file that hold these scales; they are not listed as tensors
    unexpanded: name -> storage that refsd recognises but cannot expand: "in int8_blockwise"
    expanded: name -> storage of a tool that refsd expands: "in GPTQ's 4 bits"
    renamed: name in the file -> name of the tensor whose packed codes it holds
    """

    scalings: Mapping[str, Scaling | Callable[[], Grouping | StoredTensor]] = {}
    helpers: Set[str] = frozenset()
    unexpanded: Mapping[str, str] = {}
    expanded: Mapping[str, str] = {}
    renamed: Mapping[str, str] = {}

    def __init__(
        self, path: Path, format: str, headers: dict[str, Header], metadata: dict[str, Any], data: Content
    ):
        self.path = path
        self.format = format
        self.headers = headers
        self.metadata = metadata
        self._data = data
        self._large: Header | None = None  # the large tensor that was read last

    def __getitem__(self, name: str) -> StoredTensor:
        """Return a tensor as a view of the file's content. Raises BadInput for a storage that refsd cannot expand.

        Reading a large tensor gives the memory of the previous large one back to the system. The previous view is
        still valid; its pages are read from disk again on use.
        """
        header = self.headers[name]
        dtype = SCALAR_TYPES.get(header.type)
        scaling = self.scalings.get(name)
        if name in self.unexpanded:
            raise BadInput(
                f"{self.path}: tensor {shown(name)}: it is {self.unexpanded[name]}, which refsd cannot expand: "
                "use the file in another storage"
            )
        if not self.is_readable(name):
            read = ", ".join([*SCALAR_TYPES, *BLOCK_TYPES, *GROUPED_TYPES])
            raise BadInput(
                f"{self.path}: tensor {shown(name)}: refsd cannot read type {header.type}; it reads {read}: "
                "convert the file to one of these"
            )
        raw = self._bytes(header)
        if callable(scaling):
            read = scaling()
            return read if isinstance(read, StoredTensor) else StoredTensor(header.type, header.shape, raw, read)
        if dtype is None:
            return StoredTensor(header.type, header.shape, raw)
        array = raw.view(dtype)
        if not array.flags.aligned:
            with enough_memory(self.path, name):
                array = array.copy()
        return StoredTensor(header.type, header.shape, array.reshape(header.shape), scaling)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each tensor, from the header alone."""
        return {name: header.shape for name, header in self.headers.items()}

    def _bytes(self, header: Header) -> np.ndarray:
        if header.nbytes >= LARGE:
            if self._large is not None and self._large is not header:
                let_go(self._data, self._large)
            self._large = header
        return np.frombuffer(self._data, np.uint8, header.nbytes, header.offset)

    def is_readable(self, name: str) -> bool:
        """True if refsd can read the tensor's type."""
        type = self.headers[name].type
        known = type in SCALAR_TYPES or type in BLOCK_TYPES or name in self.scalings
        return known and name not in self.unexpanded

    def has_scale(self, name: str) -> bool:
        """True if the file has scales for the tensor, whether or not refsd can expand it."""
        return name in self.scalings or name in self.unexpanded

    def holder(self, name: str) -> "Weights":
        """Return the weights of the single file that holds a tensor."""
        return self

    @property
    def content(self) -> Content:
        """The content of the whole file."""
        return self._data

    def __iter__(self) -> Iterator[str]:
        return iter(self.headers)

    def __len__(self) -> int:
        return len(self.headers)

    def __contains__(self, name: object) -> bool:
        return name in self.headers


@contextmanager
def enough_memory(path: Path, name: str) -> Iterator[None]:
    """Turn a MemoryError within the `with` block into a BadInput that names the tensor."""
    try:
        yield
    except MemoryError as error:
        detail = f": {error}" if str(error) else ""
        raise BadInput(f"{path}: tensor {shown(name)}: not enough memory{detail}") from None


class Shards(Weights):
    """The tensors of several files (shards) as one mapping."""

    def __init__(self, path: Path, shards: dict[str, Weights]):
        self.path = path
        self.format = next((shard.format for shard in shards.values()), "safetensors")
        self.headers = {name: shard.headers[name] for name, shard in shards.items()}
        self.scalings = {name: s.scalings[name] for name, s in shards.items() if name in s.scalings}
        self.unexpanded = {name: s.unexpanded[name] for name, s in shards.items() if name in s.unexpanded}
        self.expanded = {name: s.expanded[name] for name, s in shards.items() if name in s.expanded}
        self.metadata = {}
        self._shards = shards

    def __getitem__(self, name: str) -> StoredTensor:
        return self._shards[name][name]

    def holder(self, name: str) -> Weights:
        return self._shards[name]


def let_go(data: Content, header: Header) -> None:
    """Give a mapped tensor's memory back to the system, except pages that it shares with other tensors.

    Later reads fetch the pages from the file again.
    """
    if isinstance(data, bytes) or not hasattr(mmap, "MADV_DONTNEED"):
        return
    start = -(-header.offset // mmap.PAGESIZE) * mmap.PAGESIZE
    length = (header.offset + header.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE - start
    if length > 0:
        data.madvise(mmap.MADV_DONTNEED, start, length)


def read_content(path: Path, mapped: bool = True) -> Content:
    """Return a file's content, mapped or copied into memory. Raises BadInput if the file is missing or empty."""
    with open_input(path, EXPECTED) as file:
        try:
            size = os.fstat(file.fileno()).st_size
            if size == 0:
                raise BadInput(f"{path}: the file is empty; is the download complete?")
            if not mapped:
                return file.read()
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, MemoryError) as error:
            reason = getattr(error, "strerror", None) or f"not enough memory for its {size} bytes"
            raise BadInput(f"{path}: cannot read the file: {reason}") from None
    mapped_files.note(path, content)
    return content


def shown(name: str) -> str:
    """Return a tensor's name in quotes, with control characters escaped and at most 120 characters long."""
    return f'"{printable(name, 120)}"'
