"""Read torch's files since 1.6: a zip of <folder>/data.pkl and one uncompressed <folder>/data/<key> per storage.

Storages stay in the mapped file. A compressed one is refused, so that no small file can unpack to a huge size.
Source: PKWARE APPNOTE 4.3, 4.5.3; torch/serialization.py (_save), caffe2/serialize/inline_container.cc.
"""

import struct
import zlib
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from refsd.files.stored import Content, shown
from refsd.files.torch_objects import ByteRange, Storage
from refsd.files.unpickle import MAX_PICKLE, unpickle
from refsd.numerics.errors import BadInput

MAGIC = b"PK\x03\x04"
MAX_ENTRIES = 2**17
MAX_NAME = 512  # bytes

_END, _END64, _LOCATOR64 = struct.Struct("<4s4H2IH"), struct.Struct("<4sQ2H2I4Q"), struct.Struct("<4sIQI")
_CENTRAL, _LOCAL = struct.Struct("<4s6H3I5H2I"), struct.Struct("<4s5H3I2H")
_FULL16, _FULL32 = 0xFFFF, 0xFFFFFFFF  # these values mean that the number is in a zip64 record
# General-purpose flag bits that mean that the stored bytes are not the content itself. Source: APPNOTE 4.4.4.
_FLAGS = {6: "strongly encrypted", 0: "encrypted", 5: "compressed patched data", 13: "hidden by masked headers"}


class Entry(NamedTuple):
    """A file in the zip.

    header: position of its local header, in bytes
    start:  position of its content, in bytes
    nbytes: size of its content in the zip
    packed: how the content is encoded, as "compressed"; "" if it is stored unchanged
    crc:    CRC-32 of the content; None if the writer computed none
    """

    header: int
    start: int
    nbytes: int
    packed: str
    crc: int | None


def read_zip(path: Path, data: Content) -> tuple[Any, dict[str, ByteRange]]:
    """Return the pickle's value, and each storage's byte range by its key. Raises BadInput."""
    entries = _entries(path, data)
    pickles = [name for name in entries if name.count("/") == 1 and name.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise BadInput(f"{path}: {_other_zip(entries, len(pickles))}")
    prefix = pickles[0].removesuffix("data.pkl")
    if f"{prefix}constants.pkl" in entries:
        raise BadInput(f"{path}: a TorchScript archive, which is code; save its state_dict() as safetensors")
    order = entries.get(f"{prefix}byteorder")
    if order is not None and data[order.start : order.start + min(order.nbytes, 8)] != b"little":
        raise BadInput(f"{path}: not little-endian; refsd reads little-endian files: save it as safetensors")
    pickle = _stored(path, pickles[0], entries[pickles[0]])
    if pickle.nbytes > MAX_PICKLE:
        raise BadInput(f"{path}: data.pkl of {pickle.nbytes} bytes, at most {MAX_PICKLE} expected")
    check_crc(path, data, pickles[0], ByteRange(pickle.start, pickle.nbytes, pickle.crc))
    kept: dict[str, Storage] = {}
    value, end = unpickle(path, data, pickle.start, pickle.start + pickle.nbytes, kept)
    if end != pickle.start + pickle.nbytes:
        raise BadInput(f"{path}: data.pkl goes on after its end, at byte {end}; is it a checkpoint of torch's?")
    storages = {name: entry for name, entry in entries.items() if name.startswith(f"{prefix}data/")}
    return value, {
        name.removeprefix(f"{prefix}data/"): ByteRange(entry.start, _stored(path, name, entry).nbytes, entry.crc)
        for name, entry in storages.items()
    }


def check_crc(path: Path, data: Content, name: str, place: ByteRange) -> None:
    """Raise BadInput if an entry's bytes do not have the CRC-32 in the zip's directory."""
    if place.crc is None:
        return
    with memoryview(data) as view:
        found = zlib.crc32(view[place.start : place.start + place.nbytes])
    if found != place.crc:
        raise BadInput(
            f"{path}: {shown(name)} is damaged: its CRC-32 is {found:08x}, the zip says {place.crc:08x}; "
            "download it again"
        )


def _other_zip(entries: dict[str, Entry], pickles: int) -> str:
    """Say what a zip seems to be that does not hold exactly one of torch's pickles, judging by the names in it."""
    names = list(entries)
    weights = [name for name in names if name.endswith((".safetensors", ".gguf", ".ckpt", ".pt", ".pth"))]
    if weights:
        return f"a zip that holds {shown(weights[0])}: unpack it, and name that file"
    if names and all(name.endswith(".npy") for name in names):
        return "an npz, NumPy's zip of arrays; a checkpoint expected"
    if "[Content_Types].xml" in entries:
        return "a document of an office program; a checkpoint expected"
    return f"a zip with {pickles} <folder>/data.pkl among its {len(names)} files; torch writes one: no checkpoint?"


def _stored(path: Path, name: str, entry: Entry) -> Entry:
    if entry.packed:
        raise BadInput(f"{path}: {shown(name)} is {entry.packed}, and torch stores plain bytes; zip it with -0")
    return entry


def _entries(path: Path, data: Content) -> dict[str, Entry]:
    """Read every entry of the central directory and check it against its local header."""
    at, size, count = _directory(path, data)
    directory_at, end = at, at + size
    entries: dict[str, Entry] = {}
    for _ in range(count):
        if end - at < _CENTRAL.size:
            raise _damaged(path, f"the directory ends at byte {end}, within an entry")
        sign, _, _, flags, method, _, _, crc, packed, nbytes, *lengths, _, _, _, header = _CENTRAL.unpack_from(
            data, at
        )
        if sign != b"PK\x01\x02" or end - at - _CENTRAL.size < sum(lengths) or lengths[0] > MAX_NAME:
            raise _damaged(path, f"no entry of the directory at byte {at}")
        name = _name(path, data, at + _CENTRAL.size, lengths[0])
        if name in entries:
            raise BadInput(f"{path}: the zip has {shown(name)} twice; is it a checkpoint of torch's?")
        extra = data[at + _CENTRAL.size + lengths[0] : at + _CENTRAL.size + lengths[0] + lengths[1]]
        nbytes, packed, header = _large(path, name, extra, (nbytes, packed, header))
        start, local_flags = _content(path, data, name, header, directory_at)
        if packed > directory_at - start:
            raise _damaged(path, f"{shown(name)} has {packed} bytes, the file has room for {directory_at - start}")
        why = next((why for bit, why in _FLAGS.items() if (flags | local_flags) >> bit & 1), "")
        why = why or ("compressed" if method else "")
        if not why and packed != nbytes:
            raise _damaged(path, f"{shown(name)} is not compressed, but has {packed} bytes for {nbytes}")
        entries[name] = Entry(header, start, packed, why, crc)
        at += _CENTRAL.size + sum(lengths)
    if at != end:
        raise _damaged(path, f"the directory has {end - at} bytes more than its {count} entries")
    if not any(entry.crc for entry in entries.values()):
        # torch.serialization.set_crc32_options(False): torch computed no CRC-32.
        entries = {name: entry._replace(crc=None) for name, entry in entries.items()}
    in_order = sorted(entries.items(), key=lambda item: item[1].header)
    for (_, before), (name, entry) in pairwise(in_order):
        if entry.header < before.start + before.nbytes:
            raise _damaged(path, f"{shown(name)} overlaps the entry before it")
    return entries


def _directory(path: Path, data: Content) -> tuple[int, int, int]:
    """Return the central directory's position, size in bytes and number of entries."""
    at = data.rfind(b"PK\x05\x06", max(0, len(data) - _END.size - _FULL16))
    if at < 0 or len(data) - at < _END.size:
        raise _damaged(path, "no end of a zip's directory")
    _, disk, disk_too, here, count, size, start, comment = _END.unpack_from(data, at)
    if at + _END.size + comment != len(data):
        raise _damaged(path, f"{len(data) - at - _END.size - comment} bytes after its end")
    locator = at - _LOCATOR64.size
    if locator >= 0 and data[locator : locator + 4] == b"PK\x06\x07":
        large = _LOCATOR64.unpack_from(data, locator)[2]
        if large != locator - _END64.size or data[large : large + 4] != b"PK\x06\x06":
            raise _damaged(path, f"no zip64 record at byte {large}")
        _, _, _, _, disk64, disk_too64, *numbers = _END64.unpack_from(data, large)
        for short, full, long in zip(
            (disk, disk_too, here, count, size, start),
            (_FULL16,) * 4 + (_FULL32,) * 2,
            (disk64, disk_too64, *numbers),
            strict=True,
        ):
            if short not in (full, long):
                raise _damaged(path, f"its zip64 record says {long}, the record after it {short}")
        disk, disk_too, (here, count, size, start), at = disk64, disk_too64, numbers, large
    if disk or disk_too or here != count:
        raise _damaged(path, "a part of a zip in several files")
    if start + size != at or count > MAX_ENTRIES or count * _CENTRAL.size > size:
        raise _damaged(path, f"its directory of {count} entries, {size} bytes at byte {start}, ends at byte {at}")
    return start, size, count


def _name(path: Path, data: Content, at: int, length: int) -> str:
    raw = data[at : at + length]
    try:
        name = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise BadInput(f"{path}: the zip has a name that is not UTF-8, {raw[:40]!a}") from None
    if not name or "\\" in name or "\0" in name or name.startswith("/") or ".." in name.split("/"):
        raise BadInput(f"{path}: the zip has {shown(name)}, which steps out of its folder; nothing was unpacked")
    return name


def _large(path: Path, name: str, extra: bytes, numbers: tuple[int, ...]) -> tuple[int, ...]:
    """Return an entry's size, packed size and header position.

    Numbers equal to _FULL32 are replaced by those in the entry's zip64 field, which holds them in this order.
    """
    if _FULL32 not in numbers:
        return numbers
    at = 0
    while len(extra) - at >= 4:
        kind, length = struct.unpack_from("<2H", extra, at)
        full = numbers.count(_FULL32)
        if kind == 1 and length >= 8 * full and at + 4 + length <= len(extra):
            large = iter(struct.unpack_from(f"<{full}Q", extra, at + 4))
            return tuple(next(large) if number == _FULL32 else number for number in numbers)
        at += 4 + length
    raise _damaged(path, f"{shown(name)} lacks its zip64 field")


def _content(path: Path, data: Content, name: str, header: int, end: int) -> tuple[int, int]:
    """Return the position of an entry's content, and its local header's flags.

    Raises BadInput if there is no local header with the entry's name at byte `header`.
    """
    if header + _LOCAL.size <= end:
        sign, _, flags, *_, length, extra = _LOCAL.unpack_from(data, header)
        start = header + _LOCAL.size + length + extra
        raw = data[header + _LOCAL.size : header + _LOCAL.size + min(length, MAX_NAME)]
        if sign == MAGIC and raw == name.encode() and start <= end:
            return start, flags
    raise _damaged(path, f"{shown(name)} is not at byte {header}")


def _damaged(path: Path, what: str) -> BadInput:
    return BadInput(f"{path}: not a whole zip: {what}; download it again")
