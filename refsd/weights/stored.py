"""Weights: what lies in a file, by name; mapped, and read when asked for."""

import mmap
from collections.abc import Callable, Iterator, Mapping, Set
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from refsd.golden.errors import BadInput
from refsd.golden.tensor import GROUPED_TYPES, SCALAR_TYPES, Grouping, Scaling, StoredTensor
from refsd.kernels.quant import BLOCK_TYPES

LARGE = 2**20  # bytes of a tensor that is worth giving back


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
        self, path: Path, format: str, headers: dict[str, Header], metadata: dict[str, Any], data: mmap.mmap
    ):
        self.path = path
        self.format = format
        self.headers = headers
        self.metadata = metadata
        self._data = data
        self._large: Header | None = None  # the last large tensor that was asked for

    def __getitem__(self, name: str) -> StoredTensor:
        """A view of the mapped file. Raises BadInput for a type that refsd cannot read.

        The pages of the large tensor before it leave this process; who still looks there reads them again.
        """
        header = self.headers[name]
        if header.nbytes >= LARGE:
            if self._large is not None and self._large is not header:
                let_go(self._data, self._large)
            self._large = header
        dtype = SCALAR_TYPES.get(header.type)
        scaling = self.scalings.get(name)
        if dtype is None and header.type not in BLOCK_TYPES and scaling is None:
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
            array = array.copy()
        return StoredTensor(header.type, header.shape, array.reshape(header.shape), scaling)

    @property
    def bytes(self) -> mmap.mmap:
        """The whole file, mapped."""
        return self._data

    def __iter__(self) -> Iterator[str]:
        return iter(self.headers)

    def __len__(self) -> int:
        return len(self.headers)

    def __contains__(self, name: object) -> bool:
        return name in self.headers


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


def let_go(data: mmap.mmap, header: Header) -> None:
    """Give back a tensor's memory, but for the pages it shares: what is read from a file can be read again."""
    if not hasattr(mmap, "MADV_DONTNEED"):
        return
    start = -(-header.offset // mmap.PAGESIZE) * mmap.PAGESIZE
    length = (header.offset + header.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE - start
    if length > 0:
        data.madvise(mmap.MADV_DONTNEED, start, length)


def map_file(path: Path) -> mmap.mmap:
    """Map a file for reading. Raises BadInput where there is none, or nothing in it."""
    try:
        with open(path, "rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError:
        raise BadInput(f"{path}: the file is empty; is the download complete?") from None
    except OSError as error:
        raise BadInput(f"{path}: cannot read the file: {error.strerror}") from None


def shown(name: str) -> str:
    """A tensor's name as it may be printed: one line, no control codes, not endless."""
    text = name if name.isprintable() else ascii(name)[1:-1]
    return f'"{text}"' if len(text) <= 120 else f'"{text[:100]}..." ({len(text)} characters)'
