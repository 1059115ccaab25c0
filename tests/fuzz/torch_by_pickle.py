"""A second reader of torch's files: Python's own pickle and zipfile, and stand-ins for what torch puts in them.

Nothing that a file names is imported: a name is one of the stand-ins, or an error.
"""

import pickle
import struct
import zipfile
from collections import OrderedDict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO
from unittest import mock

import numpy as np
from torch_files import MAGIC

from refsd.files.pickle_reader import WRAPPERS
from refsd.files.torch_objects import DICTS, DTYPES, OPAQUE, STORAGE_NAMES


@dataclass(frozen=True, eq=False)
class _Elements:
    """type: as refsd calls it; data: raw elements"""

    type: str
    data: np.ndarray


class _Tensor:
    def __init__(self, of: _Elements, offset: int, size: tuple, stride: tuple, *more):
        kind, elements = of.type, of.data
        if len(more) > 2 and isinstance(more[2], str):  # the dtype of _rebuild_tensor_v3
            kind, width = DTYPES[more[2]]
            elements = np.frombuffer(elements.tobytes(), f"V{width}")
        if len(size) != len(stride) or min((offset, *size, *stride)) < 0:
            raise ValueError("negative")
        self.type = kind
        self.array = np.empty(size, elements.dtype)
        for index in np.ndindex(*size) if 0 not in size else ():
            self.array[index] = elements[offset + sum(i * step for i, step in zip(index, stride, strict=True))]

    def read(self) -> list:
        return [self.type, list(self.array.shape), self.array.tobytes().hex()]


class _Nothing:
    """Stands for an object that no tensor needs."""

    def __init__(self, *_, **__):
        pass

    def __setstate__(self, _):
        pass

    def __setitem__(self, *_):
        pass

    append = extend = add = update = __setitem__


class _Dict(OrderedDict):
    def __setstate__(self, state):
        if isinstance(state, dict) and isinstance(state.get("_parameters"), dict):
            self.update(state["_parameters"])


def _counted(*pairs) -> dict:
    return _Dict(pairs[0]) if pairs and isinstance(pairs[0], dict) else _Dict()


def _dict(*pairs) -> dict:
    return _Dict(*pairs) if not pairs or isinstance(pairs[0], dict | list | tuple) else _Dict()


FUNCTIONS: dict[str, Any] = {
    "torch._utils._rebuild_tensor": _Tensor,
    "torch._utils._rebuild_tensor_v2": _Tensor,
    "torch._utils._rebuild_tensor_v3": _Tensor,
    "torch._utils._rebuild_parameter": lambda data, *_: data,
    "torch._utils._rebuild_parameter_with_state": lambda data, *_: data,
    "torch.nn.parameter.Parameter": lambda data, *_: data,
    "torch._tensor._rebuild_from_type_v2": lambda function, _, arguments, __: function(*arguments),
    "torch.Size": tuple,
    "collections.defaultdict": lambda *_: _Dict(),
    "collections.Counter": _counted,
}


class _Unpickler(pickle._Unpickler):
    """storage: (element, key, elements of the whole) -> _Elements

    Python's, not C's, whose memo is an array: one memo number in the billions asks for all of the memory.
    """

    def __init__(self, file: BinaryIO, storage):
        super().__init__(file)
        self.storage = storage

    def find_class(self, module: str, name: str) -> Any:
        full = f"{module}.{name}"
        if full in FUNCTIONS:
            return FUNCTIONS[full]
        if full in STORAGE_NAMES or full in DTYPES:
            return full
        if full in DICTS:
            return _dict
        if full in OPAQUE:
            return _Nothing
        raise pickle.UnpicklingError(full)

    def persistent_load(self, pid: Any) -> Any:
        if pid[0] == "module":
            return pid[1]
        if pid[0] != "storage":
            raise pickle.UnpicklingError(str(pid[0]))
        kind, key, _, numel, *view = pid[1:]
        found = self.storage(STORAGE_NAMES[kind], key, numel)
        if view and view[0] is not None:
            _, start, count = view[0]
            found = replace(found, data=found.data[start : start + count])
        return found


def read_zip(path: Path) -> dict[str, list]:
    """name -> type, shape, bytes in hexadecimal; the CRC of what is read is checked."""
    # A number that says nothing of how an entry is to be read.
    with mock.patch.object(zipfile, "MAX_EXTRACT_VERSION", 1 << 16), zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        (pickled,) = [name for name in names if name.count("/") == 1 and name.endswith("/data.pkl")]
        if len(set(names)) != len(names):
            raise ValueError("a name twice")
        prefix = pickled.removesuffix("data.pkl")
        if f"{prefix}byteorder" in names and archive.read(f"{prefix}byteorder") != b"little":
            raise ValueError("big-endian")

        def storage(element, key: str, numel: int) -> _Elements:
            raw = archive.read(f"{prefix}data/{key}")
            if numel * element.bytes != len(raw):
                raise ValueError(f"a storage of {len(raw)} bytes for {numel} elements")
            return _Elements(element.type, np.frombuffer(raw, f"V{element.bytes}"))

        with archive.open(pickled) as file:
            value = _Unpickler(file, storage).load()
            if file.read(1):
                raise ValueError("the pickle goes on after its end")
    return _flat(value)


def read_legacy(path: Path) -> dict[str, list]:
    """The storages stand behind the pickle that asks for them: it is read twice."""
    with path.open("rb") as file:
        magic, version, system = (_Unpickler(file, None).load() for _ in range(3))
        if (type(magic), magic, type(version), version) != (int, MAGIC, int, 1001):
            raise ValueError("another magic number or version")
        if system["little_endian"] is not True:
            raise ValueError("big-endian")
        asked: dict[str, Any] = {}

        def ask(element, key: str, numel: int) -> _Elements:
            if asked.setdefault(key, (element, numel)) != (element, numel):
                raise ValueError("one storage of two types")
            return _Elements(element.type, _Endless(element.bytes))  # type: ignore[arg-type]

        at = file.tell()
        _Unpickler(file, ask).load()
        keys = _Unpickler(file, None).load()
        if type(keys) is not list or len(set(keys)) != len(keys):
            raise ValueError("keys")
        storages = {}
        for key in keys:
            element, numel = asked[key]
            (count,) = struct.unpack("<q", file.read(8))
            raw = file.read(count * element.bytes)
            if count != numel or len(raw) != count * element.bytes:
                raise ValueError("cut short")
            storages[key] = _Elements(element.type, np.frombuffer(raw, f"V{element.bytes}"))
        if file.read(1):
            raise ValueError("bytes left over")
        file.seek(at)
        return _flat(_Unpickler(file, lambda _, key, __: storages[key]).load())


class _Endless:
    """Elements that are not read yet."""

    def __init__(self, width: int):
        self.dtype = np.dtype(f"V{width}")

    def __getitem__(self, index):
        return self if isinstance(index, slice) else np.zeros((), self.dtype)[()]

    def tobytes(self) -> bytes:
        return bytes(1 << 12)


def _flat(value: Any) -> dict[str, list]:
    """The tensors under their names, dicts in dicts joined with dots."""
    for _ in range(3):
        inner = next((value[key] for key in WRAPPERS if isinstance(value, dict) and _holds(value.get(key))), None)
        value = value if inner is None else inner
    found: dict[str, list] = {}

    def join(prefix: str, entries: dict) -> None:
        for key, entry in entries.items():
            if not isinstance(key, str):
                continue
            if isinstance(entry, _Tensor):
                if prefix + key in found:
                    raise ValueError("twice")
                found[prefix + key] = entry.read()
            elif isinstance(entry, dict):
                join(f"{prefix}{key}.", entry)

    join("", value)
    return found


def _holds(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    return any(key in value for key in WRAPPERS) or any(isinstance(entry, _Tensor) for entry in value.values())
