"""Read torch's files before 1.6: several pickles in sequence, then the storages.

The pickles: magic number, protocol version, system, the saved object, keys of the storages.
For each key: number of elements (int64), data; nothing is aligned.
Source: torch/serialization.py (_legacy_save, _legacy_load).
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from refsd.files.stored import Content, shown
from refsd.files.torch_objects import ByteRange, Storage, kind
from refsd.files.unpickle import unpickle
from refsd.numerics.errors import BadInput

MAGIC = 0x1950A86A20F9469CFC6C
VERSION = 1001


def read_legacy(path: Path, data: Content) -> tuple[Any, dict[str, ByteRange]]:
    """Return the saved object, and each storage's byte range by its key. Raises BadInput."""
    magic, at = unpickle(path, data, 0, len(data))
    if type(magic) is not int or magic != MAGIC:
        raise BadInput(f"{path}: a pickle that torch did not write: it begins with {kind(magic)}; no checkpoint?")
    version, at = unpickle(path, data, at, len(data))
    if type(version) is not int or version != VERSION:
        raise BadInput(f"{path}: not a checkpoint of torch's protocol {VERSION}; save it as safetensors")
    system, at = unpickle(path, data, at, len(data))
    if type(system) is not dict or system.get("little_endian") is not True:
        raise BadInput(f"{path}: not little-endian; refsd reads little-endian files: save it as safetensors")
    storages: dict[str, Storage] = {}
    value, at = unpickle(path, data, at, len(data), storages)
    keys, at = unpickle(path, data, at, len(data))
    if type(keys) is not list or not all(type(key) is str for key in keys):
        raise BadInput(f"{path}: its storages are listed in {kind(keys)}, a list of texts expected")
    return value, _places(path, data, at, keys, storages)


def _places(
    path: Path, data: Content, at: int, keys: Iterable[str], storages: Mapping[str, Storage]
) -> dict[str, ByteRange]:
    places: dict[str, ByteRange] = {}
    for key in keys:
        storage = storages.get(key)
        if storage is None or key in places:
            raise BadInput(f"{path}: the storage {shown(key)} is there twice, or no tensor's; download it again")
        numel = int.from_bytes(data[at : at + 8], "little", signed=True)
        nbytes = numel * storage.element.bytes
        if len(data) - at < 8 or numel != storage.whole or nbytes > len(data) - at - 8:
            raise BadInput(
                f"{path}: the storage {shown(key)} has {numel} elements and {max(0, len(data) - at - 8)} bytes are "
                f"left, {storage.whole} of {storage.element.bytes} expected: cut short? download it again"
            )
        places[key] = ByteRange(at + 8, nbytes)
        at += 8 + nbytes
    if at != len(data):
        raise BadInput(f"{path}: {len(data) - at} bytes after its last storage; download it again")
    return places
