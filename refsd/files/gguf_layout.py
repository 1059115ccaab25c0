"""Check that a GGUF file's tensors follow each other, each at a multiple of the alignment, to the end of the file.

Type and shape give a tensor's size. If the size does not lead to the next tensor's offset, the error blames the
tensor itself; but if the sizes of both lead to the offset of the tensor after the next, it blames the next one's
offset.
"""

import itertools
import math
from collections.abc import Mapping
from pathlib import Path

from refsd.files.gguf_types import TYPES
from refsd.files.stored import Header, shown
from refsd.numerics.errors import BadInput


def align(at: int, alignment: int) -> int:
    return -(-at // alignment) * alignment


def check_layout(path: Path, headers: Mapping[str, Header], start: int, size: int, alignment: int) -> None:
    """Raise BadInput for a tensor that overlaps another or leaves a hole, or if the last does not end the file.

    headers: offsets count from the beginning of the file; none is below `start`, where the data begin
    size:    size of the file in bytes
    """
    order = sorted(headers.items(), key=lambda item: (item[1].offset, item[1].nbytes))
    if order and order[0][1].offset != start:
        name, header = order[0]
        raise _offset_wrong(path, name, header, start)
    for (name, header), (after, following) in itertools.pairwise(order):
        room = following.offset - header.offset
        if align(header.nbytes, alignment) != room:
            both = align(header.nbytes, alignment) + align(following.nbytes, alignment)
            ends = [other.offset for _, other in order if other.offset > following.offset]
            if ends and header.offset + both == ends[0]:
                raise _offset_wrong(path, after, following, header.offset + align(header.nbytes, alignment))
            raise _size_wrong(path, name, header, room, alignment, f"{shown(after)} begins")
    if order:
        _check_end(path, *order[-1], size, alignment)


def _check_end(path: Path, name: str, last: Header, size: int, alignment: int) -> None:
    room = size - last.offset
    if last.nbytes > room:
        types = _fitting(last, room, alignment)
        hint = f", or its type, {last.type}, is wrong: {' or '.join(types)} would fit" if types else ""
        raise BadInput(
            f"{path}: tensor {shown(name)} ends at byte {last.offset + last.nbytes} of {size}: the file is cut "
            f"short{hint}; download it again"
        )
    if room >= last.nbytes + alignment:
        raise _size_wrong(path, name, last, room, alignment, "the file ends")


def _offset_wrong(path: Path, name: str, header: Header, expected: int) -> BadInput:
    what = "leaves a hole before it" if header.offset > expected else "overlaps the one before it"
    return BadInput(
        f"{path}: tensor {shown(name)} {what}: it begins at byte {header.offset}, {expected} expected; "
        "convert the file again"
    )


def _size_wrong(path: Path, name: str, header: Header, room: int, alignment: int, end: str) -> BadInput:
    what = "overlaps what follows" if header.nbytes > room else "leaves a hole behind it"
    types = _fitting(header, room, alignment)
    hint = f"its type may be wrong: {' or '.join(types)} would fit; " if types else ""
    return BadInput(
        f"{path}: tensor {shown(name)} {what}: {header.type} {list(header.shape)} takes {header.nbytes} bytes, and "
        f"{end} after {room}; {hint}convert the file again"
    )


def _fitting(header: Header, room: int, alignment: int) -> list[str]:
    """Return up to four types with which the tensor would fill `room` bytes."""
    elements = math.prod(header.shape)
    sizes = {
        kind.name: elements // kind.block * kind.bytes for kind in TYPES.values() if elements % kind.block == 0
    }
    return [name for name, nbytes in sizes.items() if nbytes <= room < nbytes + alignment][:4]
