"""Read torch's files (.ckpt, .pt, .pth, .bin) without running the code in them.

The state dict is the whole pickle or its entry under one of WRAPPERS. Names of nested dicts are joined with dots;
values that are not tensors are left out.
A tensor is a view of a storage: offset, sizes and strides, which are checked against the storage before any read.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from refsd.files.scaled import find_scalings
from refsd.files.stored import Content, Header, Weights, read_content, shown
from refsd.files.torch_legacy import read_legacy
from refsd.files.torch_objects import ByteRange, Tensor, kind
from refsd.files.torch_zip import MAGIC, check_crc, read_zip
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import SCALAR_TYPES, StoredTensor, shape_problem

SUFFIXES = (".ckpt", ".pt", ".pth", ".bin", ".pkl")
# Keys under which trainers store the state dict; the first that holds tensors is taken (ESRGAN: averaged weights).
WRAPPERS = ("state_dict", "params_ema", "params", "model")
MAX_WRAPPERS = 3  # nested in each other
MAX_DEPTH = 6  # of nested dicts in a state dict
MAX_TENSORS = 2**16
MAX_ENTRIES = 2**20  # visited; a dict that occurs in several places counts each time
MAX_NAME = 512  # characters
FREE = 2**24  # bytes that a tensor may always have, even if its strides repeat a smaller storage


class PickledWeights(Weights):
    """The tensors of a torch file.

    strides:  name -> strides in elements, for tensors that are not contiguous
    storages: name -> key and byte range of the tensor's storage
    """

    def __init__(self, path: Path, headers: dict[str, Header], metadata: dict[str, Any], data: Content):
        super().__init__(path, "pickle", headers, metadata, data)
        self.strides: dict[str, tuple[int, ...]] = {}
        self.storages: dict[str, tuple[str, ByteRange]] = {}
        self._checked: set[str] = set()

    def __getitem__(self, name: str) -> StoredTensor:
        """Return a tensor as a view of the file's content, or as a copy if it is not contiguous.

        The first access to a storage checks its CRC-32. Raises BadInput if it is wrong.
        """
        key, place = self.storages[name]
        if key not in self._checked:
            check_crc(self.path, self._data, f"data/{key}", place)
            self._checked.add(key)
        header = self.headers[name]
        if name not in self.strides or not self.is_readable(name) or header.type not in SCALAR_TYPES:
            return super().__getitem__(name)
        dtype, stride = SCALAR_TYPES[header.type], self.strides[name]
        span = 1 + sum((size - 1) * step for size, step in zip(header.shape, stride, strict=True))
        raw = np.frombuffer(self._data, f"u{dtype.itemsize}", span, header.offset)
        strided = np.lib.stride_tricks.as_strided(raw, header.shape, [step * dtype.itemsize for step in stride])
        data = np.ascontiguousarray(strided).view(dtype)
        scaling = self.scalings.get(name)
        read = scaling() if callable(scaling) else scaling
        return read if isinstance(read, StoredTensor) else StoredTensor(header.type, header.shape, data, read)


def is_pickle(start: bytes, suffix: str) -> bool:
    """Recognise torch's files by their first 16 bytes or their suffix.

    A safetensors file may begin like a pickle (if its header is 640 bytes long, say); then byte 8 is a brace.
    """
    pickled = start[:1] == b"\x80" and start[1:2] in (b"\2", b"\3", b"\4", b"\5") and start[8:9] != b"{"
    return suffix in SUFFIXES or pickled or start.startswith(MAGIC)


def open_pickle(path: Path, mapped: bool = True) -> PickledWeights:
    """Read the pickle and find its state dict; run no code and copy no storage. Raises BadInput."""
    data = read_content(path, mapped)
    value, places = read_zip(path, data) if data[:4] == MAGIC else read_legacy(path, data)
    metadata, state_dict = _state_dict(path, value)
    weights = PickledWeights(path, {}, metadata, data)
    for name, tensor in _tensors(path, state_dict).items():
        weights.headers[name] = _header(path, name, tensor, places)
        weights.storages[name] = tensor.storage.key, places[tensor.storage.key]
        if math.prod(tensor.size) > 0 and not _follow_one_another(tensor):
            weights.strides[name] = tensor.stride
    _scale(weights)
    return weights


def _scale(weights: PickledWeights) -> None:
    """Join weights with the scales stored beside them, as in safetensors. Raises BadInput if scales do not fit."""
    named = {id(header): name for name, header in weights.headers.items()}

    def read(header: Header) -> np.ndarray:
        return np.ascontiguousarray(weights[named[id(header)]].data).reshape(-1).view(np.uint8)

    found = find_scalings(weights.path, dict(weights.headers), {}, read)
    for name in found.changed.keys() & weights.strides.keys():
        raise BadInput(f"{weights.path}: tensor {shown(name)}: its codes do not follow one another; save it again")
    found.give_to(weights)


def _state_dict(path: Path, value: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the numbers and texts beside the state dict, and the state dict itself."""
    if type(value) is not dict:
        raise BadInput(f"{path}: holds {kind(value)}, a state dict expected: names with tensors")
    metadata = {}
    for _ in range(MAX_WRAPPERS):
        wrapper = next((key for key in WRAPPERS if _holds_tensors(value.get(key))), None)
        if wrapper is None:
            break
        metadata |= {key: entry for key, entry in value.items() if type(entry) in (int, float, str)}
        value = value[wrapper]
    return metadata, value


def _holds_tensors(value: Any) -> bool:
    if type(value) is not dict:
        return False
    return any(key in value for key in WRAPPERS) or any(type(entry) is Tensor for entry in value.values())


def _tensors(path: Path, state_dict: dict[str, Any]) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    seen = 0

    def join(prefix: str, entries: dict[str, Any], depth: int) -> None:
        nonlocal seen
        for key, value in entries.items():
            seen += 1
            name = prefix + key
            if type(value) is Tensor:
                if name in found:
                    raise BadInput(f"{path}: tensor {shown(name)} is there twice")
                if len(name) > MAX_NAME:
                    raise BadInput(f"{path}: tensor {shown(name)}: at most {MAX_NAME} characters expected")
                found[name] = value
            elif type(value) is dict and len(name) <= MAX_NAME:
                if depth == MAX_DEPTH:
                    raise BadInput(f"{path}: dicts are nested deeper than {MAX_DEPTH} at {shown(name)}")
                join(f"{name}.", value, depth + 1)
            if len(found) > MAX_TENSORS or seen > MAX_ENTRIES:
                raise BadInput(
                    f"{path}: more than {MAX_TENSORS} tensors, or {MAX_ENTRIES} entries, in its state dict"
                )

    join("", state_dict, 1)
    if not found:
        raise BadInput(f"{path}: no tensors in its {len(state_dict)} entries; a state dict expected")
    return found


def _header(path: Path, name: str, tensor: Tensor, places: Mapping[str, ByteRange]) -> Header:
    """Build a tensor's header. Raises BadInput if the tensor does not lie within its storage."""
    at = f"{path}: tensor {shown(name)}"
    storage, (element, itemsize) = tensor.storage, tensor.element
    place = places.get(storage.key)
    if place is None:
        raise BadInput(f"{at}: its storage {shown(storage.key)} is not in the file; download it again")
    if storage.whole * storage.element.bytes != place.nbytes:
        raise BadInput(
            f"{at}: its storage {shown(storage.key)} has {place.nbytes} bytes, {storage.whole} elements of "
            f"{storage.element.bytes} expected; download it again"
        )
    if min(tensor.offset, *tensor.size, *tensor.stride, 0) < 0:
        raise BadInput(f"{at}: {_layout(tensor)}: none negative expected")
    if problem := shape_problem(tensor.size):
        raise BadInput(f"{at}: {_layout(tensor)}: {problem}")
    elements, room = math.prod(tensor.size), storage.numel * storage.element.bytes
    start = place.start + storage.start * storage.element.bytes
    if elements == 0:
        return Header(element, tensor.size, start, 0)
    last = tensor.offset + sum((size - 1) * step for size, step in zip(tensor.size, tensor.stride, strict=True))
    if (last + 1) * itemsize > room:
        raise BadInput(
            f"{at}: {_layout(tensor)}: its last element is {_short(last)}, its storage ends at {room // itemsize}"
        )
    if elements * itemsize > max(room, FREE):
        raise BadInput(f"{at}: {_layout(tensor)}: repeats {room} bytes of storage up to {elements * itemsize}")
    return Header(element, tensor.size, start + tensor.offset * itemsize, elements * itemsize)


def _follow_one_another(tensor: Tensor) -> bool:
    step = 1
    for size, stride in zip(tensor.size[::-1], tensor.stride[::-1], strict=True):
        if size != 1 and stride != step:
            return False
        step *= size
    return True


def _layout(tensor: Tensor) -> str:
    size, stride = (f"[{', '.join(map(_short, numbers))}]"[:100] for numbers in (tensor.size, tensor.stride))
    return f"shape {size}, strides {stride}, offset {_short(tensor.offset)}"


def _short(number: int) -> str:
    return str(number) if abs(number) < 10**20 else "beyond 10^20"
