"""GGUF: counts, types, shapes, offsets, metadata, any byte. The second reader: gguf-py's."""

import math
import struct
from pathlib import Path
from random import Random
from typing import NamedTuple

import gguf
import numpy as np
from kind import Files, Kind, Mutation
from mutations import TEXTS, bytes_changed, near, number
from readings import raw, tensors_read

from refsd.files.formats import open_weights
from refsd.files.gguf import NUMBERS, TYPES
from refsd.files.gguf_arrays import texts

FILE = "a.gguf"
BLOCKS = ((8, 34), (2, 18), (12, 144))  # q8_0, q4_0, q4_k: number in the file, bytes of a block


class Entry(NamedTuple):
    """One entry of the metadata; value: its bytes behind the type"""

    key: bytes
    kind: int
    value: bytes


class Info(NamedTuple):
    """dims: fastest first"""

    name: bytes
    dims: tuple[int, ...]
    type: int
    offset: int


class Parsed(NamedTuple):
    """version, tensors, entries: as the file claims"""

    version: int
    tensors: int
    entries: int
    metadata: tuple[Entry, ...]
    infos: tuple[Info, ...]
    data: bytes

    def write(self) -> bytes:
        out = b"GGUF" + struct.pack("<IQQ", self.version, self.tensors % 2**64, self.entries % 2**64)
        for key, kind, value in self.metadata:
            out += struct.pack("<Q", len(key)) + key + struct.pack("<I", kind % 2**32) + value
        for name, dims, kind, offset in self.infos:
            out += struct.pack("<Q", len(name)) + name + struct.pack("<I", len(dims))
            out += b"".join(struct.pack("<Q", n % 2**64) for n in dims)
            out += struct.pack("<IQ", kind % 2**32, offset % 2**64)
        return out + bytes(-len(out) % 32) + self.data


def _text(value: str) -> bytes:
    raw = value.encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(raw)) + raw


def _array(code: int, form: str, values) -> bytes:
    return struct.pack("<IQ", code, len(values)) + b"".join(struct.pack(form, v) for v in values)


def _texts(values) -> bytes:
    return struct.pack("<IQ", 8, len(values)) + b"".join(map(_text, values))


PLAIN = Parsed(
    3,
    5,
    7,
    (
        Entry(b"general.architecture", 8, _text("sd1")),
        Entry(b"general.alignment", 4, struct.pack("<I", 32)),
        Entry(b"words", 9, _texts(["a", "cat"])),
        Entry(b"numbers", 9, _array(5, "<i", range(40))),
        Entry(b"few", 9, _array(6, "<f", (0.5, 2.0))),
        Entry(b"half", 6, struct.pack("<f", 0.5)),
        Entry(b"comfy.gguf.orig_shape.b", 9, _array(5, "<i", (4, 4, 1, 1))),
    ),
    (
        Info(b"a", (3, 2), 0, 0),
        Info(b"b", (4, 4), 1, 32),
        Info(b"q8", (64, 2), 8, 64),
        Info(b"q4", (32, 3), 2, 224),
        Info(b"k", (256, 1), 12, 288),
    ),
    b"".join(
        part + bytes(-len(part) % 32)
        for part in (
            np.arange(6, dtype="<f4").tobytes(),
            np.arange(16, dtype="<f2").tobytes(),
            *(bytes((7 * i + 1) % 61 for i in range(n)) for n in (136, 54, 144)),
        )
    ),
)


def examples(folder: Path) -> dict[str, Files]:
    aligned = PLAIN._replace(entries=2, metadata=PLAIN.metadata[:1] + PLAIN.metadata[-1:])
    return {"plain": {FILE: PLAIN.write()}, "unaligned": {FILE: aligned.write()}}


def mutate(rng: Random, files: Files) -> Mutation:
    kind = rng.choice(["info", "info", "info", "entry", "entry", "claim", "bytes", "bytes", "more"])
    if kind == "bytes":
        changed, what = bytes_changed(rng, files[FILE], 560)
        return Mutation({FILE: changed}, what)
    parsed = PLAIN
    if kind == "claim":
        field = rng.choice(["version", "tensors", "entries"])
        claimed = near(rng, getattr(parsed, field)) % 2 ** (32 if field == "version" else 64)
        same = claimed == getattr(parsed, field) or (field == "version" and claimed == 2)
        return Mutation({FILE: parsed._replace(**{field: claimed}).write()}, f"{field} {claimed}", not same)
    if kind == "info":
        i = rng.randrange(len(parsed.infos))
        info, what = _info(rng, parsed.infos[i], parsed.infos)
        infos = (*parsed.infos[:i], info, *parsed.infos[i + 1 :])
        return Mutation(
            {FILE: parsed._replace(infos=infos).write()}, f"tensor {i}: {what}", not _same(info, parsed.infos[i])
        )
    if kind == "entry":
        i = rng.randrange(len(parsed.metadata))
        entry, what = _entry(rng, parsed.metadata[i], parsed.metadata)
        metadata = (*parsed.metadata[:i], entry, *parsed.metadata[i + 1 :])
        changes = entry != parsed.metadata[i]
        return Mutation({FILE: parsed._replace(metadata=metadata).write()}, f"metadata {i}: {what}", changes)
    what = rng.choice(["twice", "reordered", "fewer", "longer"])
    infos, data = list(parsed.infos), parsed.data
    if what == "twice":
        infos.append(rng.choice(infos))
    elif what == "reordered":
        rng.shuffle(infos)
    elif what == "fewer":
        infos.pop(rng.randrange(len(infos)))
    else:
        data += bytes(rng.choice([1, 31, 32, 4096]))
    return Mutation({FILE: parsed._replace(tensors=len(infos), infos=tuple(infos), data=data).write()}, what)


def _same(info: Info, before: Info) -> bool:
    """The tensor b has its shape in the metadata: its axes here may be others."""
    same_size = info.name == b"b" and math.prod(info.dims) == math.prod(before.dims)
    return info == (before._replace(dims=info.dims) if same_size else before)


def _info(rng: Random, info: Info, infos: tuple[Info, ...]) -> tuple[Info, str]:
    field = rng.choice(["type", "type", "dims", "dims", "offset", "name", "rank"])
    if field == "type":
        return info._replace(type=rng.choice([*TYPES, 4, 5, 31, 36, 99, number(rng) % 2**32])), field
    if field == "dims":
        i = rng.randrange(len(info.dims))
        dims = (*info.dims[:i], near(rng, info.dims[i]) % 2**64, *info.dims[i + 1 :])
        return info._replace(dims=dims), f"dims {dims}"
    if field == "offset":
        offset = rng.choice([near(rng, info.offset) % 2**64, rng.choice(infos).offset, info.offset + 32])
        return info._replace(offset=offset), f"offset {offset}"
    if field == "name":
        name = rng.choice([t.encode("utf-8", "surrogatepass") for t in TEXTS] + [rng.choice(infos).name, b"\xff"])
        return info._replace(name=name), f"name {name[:20]!r}"
    dims = rng.choice([(), (*info.dims, 1), (*info.dims, 2), info.dims[::-1], info.dims[:1], (*info.dims, 1, 1, 1)])
    return info._replace(dims=dims), f"dims {dims}"


def _entry(rng: Random, entry: Entry, entries: tuple[Entry, ...]) -> tuple[Entry, str]:
    field = rng.choice(["key", "kind", "value", "array", "alignment", "orig_shape"])
    if field == "key":
        key = rng.choice([t.encode("utf-8", "surrogatepass") for t in TEXTS] + [rng.choice(entries).key])
        return entry._replace(key=key), f"key {key[:20]!r}"
    if field == "kind":
        return entry._replace(kind=rng.choice([*range(14), number(rng) % 2**32])), field
    if field == "array":
        inner = struct.pack("<IQ", rng.choice([*range(14), 2**31]), number(rng) % 2**64)
        depth = rng.choice([0, 1, 3, 4, 2000])
        return entry._replace(kind=9, value=struct.pack("<IQ", 9, 1) * depth + inner), f"array, depth {depth}"
    if field == "alignment":
        code, form = rng.choice([(4, "<I"), (5, "<i"), (10, "<Q"), (6, "<f"), (7, "<B"), (0, "<B")])
        value = rng.choice([0, 1, 2, 3, 8, 16, 31, 32, 64, 127])
        return Entry(b"general.alignment", code, struct.pack(form, value)), f"alignment {value} of type {code}"
    if field == "orig_shape":
        shape = [rng.choice([0, 1, 2, 4, 8, 16, -1, 2**31 - 1]) for _ in range(rng.randrange(6))]
        name = rng.choice([b"a", b"b", b"q8", b"nobody"])
        return Entry(b"comfy.gguf.orig_shape." + name, 9, _array(5, "<i", shape)), f"orig_shape {shape} of {name!r}"
    changed, what = bytes_changed(rng, entry.value)
    return entry._replace(value=changed), f"value: {what}"


def read(folder: Path):
    weights = open_weights(folder / FILE)
    metadata = {}
    for key, value in weights.metadata.items():
        if hasattr(value, "length"):
            of, length, at = value.of, value.length, value.at
            if of in NUMBERS:
                value = raw(weights.path, at, length * struct.calcsize(NUMBERS[of])).hex()
            elif of == 8:
                value = texts(weights, key)
            value = [of, length, value if of != 9 else ""]
        metadata[key] = repr(value)
    return {"tensors": tensors_read(weights), "metadata": metadata}


def second(folder: Path):
    """Shapes and bytes; gguf-py gives no original shapes, and of the metadata the keys."""
    ours = read(folder)
    try:
        reader = gguf.GGUFReader(folder / FILE)
    except ValueError as error:
        # It has no name for ggml's newest types, and takes an alignment of one type of integers only.
        if "GGMLQuantizationType" in str(error) or "general.alignment" in str(error):
            return ours
        raise
    tensors = {}
    for tensor in reader.tensors:
        name, kind = tensor.name, TYPES[int(tensor.tensor_type)].name
        shape = [int(n) for n in tensor.shape[::-1]]
        wanted = reader.get_field(f"comfy.gguf.orig_shape.{name}")
        if wanted is not None:
            shape = [int(n) for n in wanted.contents()]
        tensors[name] = [kind, shape, np.ascontiguousarray(tensor.data).tobytes().hex()]
        if kind == "q8_1":  # gguf-py takes a block for 40 bytes; ggml has 36
            tensors[name] = ours["tensors"][name]
    keys = {key for key in reader.fields if not key.startswith("GGUF.")}
    if keys != ours["metadata"].keys():
        raise ValueError(f"the metadata has the keys {sorted(keys)}")
    return ours | {"tensors": tensors}


def commands(folder: Path) -> list[list[str]]:
    path = str(folder / FILE)
    made = str(folder / "out.safetensors")
    return [["info", path, "--tensors", "--values"], ["info", path, "--json"], ["dequant", path, "-o", made]]


GGUF = Kind("gguf", examples, mutate, read, second, commands)
