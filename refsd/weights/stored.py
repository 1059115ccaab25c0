"""Weights: what lies in a file, by name; mapped, and read when asked for.

A mapped file must stay as it is while it is in use. If another process cuts it, the system ends this one with
SIGBUS as soon as it looks beyond the new end: no exception, and nothing that Python could catch. A program that
cannot rule that out opens with mapped=False, which reads the whole file into memory once.
"""

import mmap
import os
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from refsd.golden.input_file import open_input
from refsd.kernels.quant import BLOCK_TYPES
from refsd.numerics.errors import BadInput
from refsd.numerics.printable import printable
from refsd.numerics.tensor import GROUPED_TYPES, SCALAR_TYPES, Grouping, Scaling, StoredTensor

LARGE = 2**20  # bytes of a tensor that is worth giving back
EXPECTED = "a .safetensors, .gguf or torch file (.ckpt, .pt, .pth, .bin)"

# All of a file: mapped, or read into memory.
Content = mmap.mmap | bytes


class Header(NamedTuple):
    """What a file says of a tensor.

    type:   as StoredTensor.type; may be a type that the format knows and refsd does not
    shape:  in torch's order
    offset: of the first byte, from the start of the file
    nbytes: on disk
    """

    type: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class Weights(Mapping[str, StoredTensor]):
    """The tensors of one file, under the file's own names.

    path:     the file
    format:   "safetensors", "gguf" or "pickle"
    headers:  name -> Header; reads nothing
    metadata: what else the header says
    scalings: name -> what its values are multiplied by; of many groups, a function that reads it
    helpers:  names in the file that hold these scales: no tensors of their own
    """

    scalings: Mapping[str, Scaling | Callable[[], Grouping]] = {}
    helpers: Set[str] = frozenset()

    def __init__(
        self, path: Path, format: str, headers: dict[str, Header], metadata: dict[str, Any], data: Content
    ):
        self.path = path
        self.format = format
        self.headers = headers
        self.metadata = metadata
        self._data = data
        self._large: Header | None = None  # the last large tensor that was asked for

    def __getitem__(self, name: str) -> StoredTensor:
        """A view of the file's content. Raises BadInput for a type that refsd cannot read.

        The pages of the large tensor before it leave this process; who still looks there reads them again.
        """
        header = self.headers[name]
        if header.nbytes >= LARGE:
            if self._large is not None and self._large is not header:
                let_go(self._data, self._large)
            self._large = header
        dtype = SCALAR_TYPES.get(header.type)
        scaling = self.scalings.get(name)
        if not self.is_readable(name):
            read = ", ".join([*SCALAR_TYPES, *BLOCK_TYPES, *GROUPED_TYPES])
            raise BadInput(
                f"{self.path}: tensor {shown(name)}: refsd cannot read type {header.type}; it reads {read}: "
                "convert the file to one of these"
            )
        raw = np.frombuffer(self._data, np.uint8, header.nbytes, header.offset)
        if callable(scaling):
            return StoredTensor(header.type, header.shape, raw, scaling())
        if dtype is None:
            return StoredTensor(header.type, header.shape, raw)
        array = raw.view(dtype)
        if not array.flags.aligned:
            with enough_memory(self.path, name):
                array = array.copy()
        return StoredTensor(header.type, header.shape, array.reshape(header.shape), scaling)

    def is_readable(self, name: str) -> bool:
        """Whether refsd reads the tensor's type."""
        type = self.headers[name].type
        return type in SCALAR_TYPES or type in BLOCK_TYPES or name in self.scalings

    @property
    def content(self) -> Content:
        """The whole file."""
        return self._data

    def __iter__(self) -> Iterator[str]:
        return iter(self.headers)

    def __len__(self) -> int:
        return len(self.headers)

    def __contains__(self, name: object) -> bool:
        return name in self.headers


@contextmanager
def enough_memory(path: Path, name: str) -> Iterator[None]:
    """Raises BadInput that names a tensor whose values do not fit into memory."""
    try:
        yield
    except MemoryError as error:
        detail = f": {error}" if str(error) else ""
        raise BadInput(f"{path}: tensor {shown(name)}: not enough memory{detail}") from None


class Shards(Weights):
    """Several files as one."""

    def __init__(self, path: Path, shards: dict[str, Weights]):
        self.path = path
        self.format = next((shard.format for shard in shards.values()), "safetensors")
        self.headers = {name: shard.headers[name] for name, shard in shards.items()}
        self.scalings = {name: s.scalings[name] for name, s in shards.items() if name in s.scalings}
        self.metadata = {}
        self._shards = shards

    def __getitem__(self, name: str) -> StoredTensor:
        return self._shards[name][name]


def let_go(data: Content, header: Header) -> None:
    """Give back a mapped tensor's memory, but for the pages it shares: they can be read from the file again."""
    if isinstance(data, bytes) or not hasattr(mmap, "MADV_DONTNEED"):
        return
    start = -(-header.offset // mmap.PAGESIZE) * mmap.PAGESIZE
    length = (header.offset + header.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE - start
    if length > 0:
        data.madvise(mmap.MADV_DONTNEED, start, length)


def read_content(path: Path, mapped: bool = True) -> Content:
    """All of a file, mapped or copied into memory. Raises BadInput where there is none, or nothing in it."""
    with open_input(path, EXPECTED) as file:
        try:
            size = os.fstat(file.fileno()).st_size
            if size == 0:
                raise BadInput(f"{path}: the file is empty; is the download complete?")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if mapped else file.read()
        except (OSError, MemoryError) as error:
            reason = getattr(error, "strerror", None) or f"not enough memory for its {size} bytes"
            raise BadInput(f"{path}: cannot read the file: {reason}") from None


def shown(name: str) -> str:
    """A tensor's name in quotes, as it may be printed."""
    return f'"{printable(name, 120)}"'
