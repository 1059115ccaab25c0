"""Dumps of engines: npy, npz, stable-diffusion.cpp's .bin. Second readers: NumPy's, and ten lines."""

import io
import struct
import warnings
import zipfile
from pathlib import Path
from random import Random

import numpy as np
from kind import Files, Kind, Mutation
from mutations import bytes_changed, near, number
from safetensors.numpy import save_file

from refsd.golden import dumps

ARRAYS = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": np.arange(4, dtype=np.float64),
    "c": np.array(2, np.int32),
    "d": np.asfortranarray(np.arange(6, dtype=np.float16).reshape(3, 2)),
    "e": np.array([True, False]),
}
DESCRIPTIONS = (
    "<f4",
    ">f4",
    "<f8",
    "|O",
    "<f2",
    "<i8",
    "<c8",
    "|S3",
    "<U2",
    "|V8",
    "<m8",
    "|b1",
    "<f16",
    "f4",
    "<q",
    "",
)
SHAPES = (
    "()",
    "(6,)",
    "(2, 3)",
    "(3, 2)",
    "(0,)",
    "(-1,)",
    "(2**70,)",
    "(1e9,)",
    "((2, 3),)",
    "[2, 3]",
    "2",
    "(2, 3, )",
)
SHAPES += (
    "(9223372036854775807, 2)",
    "(4294967296, 4294967296)",
    "(True, 6)",
    "(2, None)",
    "(-2, -3)",
    "(1,) * 40",
)


def _saved(array) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def _zipped(entries, method=zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, content in entries:
            archive.writestr(name, content)
    return out.getvalue()


def _npy_changed(rng: Random, content: bytes) -> tuple[bytes, str]:
    """The version, the header's length, a field of it, or any byte."""
    kind = rng.choice(["field", "field", "field", "version", "length", "bytes", "text"])
    (length,) = struct.unpack_from("<H", content, 8)
    header, data = content[10 : 10 + length].decode("latin1"), content[10 + length :]
    if kind == "bytes":
        return bytes_changed(rng, content, 10 + length)
    if kind == "version":
        version = bytes([rng.choice([0, 1, 2, 3, 9]), rng.choice([0, 0, 1])])
        return content[:6] + version + content[8:], f"version {version!r}"
    if kind == "length":
        return content[:8] + struct.pack("<H", near(rng, length) % 2**16) + content[10:], "length"
    if kind == "text":
        header = rng.choice(
            ["{}", "None", "__import__('os').system('touch executed')", "(" * 3000, "{'descr': '<f4'}"]
        )
    else:
        shape = header[header.index("'shape': ") + 9 : header.rindex(")") + 1]
        old = rng.choice([header[header.index("'descr': ") + 9 :].split(",")[0], shape, "True", "False"])
        new = rng.choice([*(f"'{d}'" for d in DESCRIPTIONS), *SHAPES, "True", "False", "1", "[('a', '<f4')]"])
        header = header.replace(old, new, 1)
    header = header.rstrip() + " " * rng.randrange(3) + "\n"
    return content[:8] + struct.pack("<H", len(header)) + header.encode("latin1") + data, header.strip()[:90]


def _mutate_npy(rng: Random, files: Files) -> Mutation:
    changed, what = _npy_changed(rng, files["a.npy"])
    return Mutation({"a.npy": changed}, what)


def _mutate_npz(rng: Random, files: Files) -> Mutation:
    kind = rng.choice(["member", "member", "zip", "record", "bytes", "bomb", "twice"])
    content = files["a.npz"]
    entries = [(f"{name}.npy", _saved(array)) for name, array in ARRAYS.items()]
    method = rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
    if kind == "bytes":
        changed, what = bytes_changed(rng, content)
        return Mutation({"a.npz": changed}, what)
    if kind == "record":
        sign = rng.choice([b"PK\1\2", b"PK\3\4", b"PK\5\6"])
        at = (
            rng.choice([i for i in range(len(content)) if content.startswith(sign, i)] or [0])
            + 4
            + rng.randrange(40)
        )
        raw = struct.pack("<I", number(rng) % 2**32)
        return Mutation({"a.npz": content[:at] + raw + content[at + 4 :]}, f"{sign!r} record, byte {at}")
    i = rng.randrange(len(entries))
    if kind == "member":
        changed, what = _npy_changed(rng, entries[i][1])
        entries[i] = (entries[i][0], changed)
    elif kind == "zip":
        what = rng.choice(
            ["a.txt", "../a.npy", "a", ".npy", "/a.npy", "\u202ea.npy", "x" * 3000 + ".npy", "\x1b[2J.npy"]
        )
        entries[i] = (what, entries[i][1])
    elif kind == "bomb":
        what, method = "zeros", zipfile.ZIP_DEFLATED
        entries[i] = ("a.npy", entries[0][1][:128] + bytes(rng.choice([1 << 16, 1 << 22])))
    else:
        what = "twice"
        entries.append(entries[i])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a name that is there twice
        return Mutation({"a.npz": _zipped(entries, method)}, f"{kind} {what[:60]}")


def _bin_record(name: bytes, kind: int, dims: tuple[int, ...], data: bytes, rank=None, length=None) -> bytes:
    head = struct.pack("<3i", len(dims) if rank is None else rank, len(name) if length is None else length, kind)
    return head + struct.pack(f"<{len(dims)}i", *dims) + name + data


RECORDS = (
    (b"one", 0, (3, 2), np.arange(6, dtype="<f4").tobytes()),
    (b"", 1, (4,), np.arange(4, dtype="<f2").tobytes()),
    (b"q", 8, (32, 2), bytes(range(1, 69))),
)


def _mutate_bin(rng: Random, files: Files) -> Mutation:
    if rng.random() < 0.35:
        changed, what = bytes_changed(rng, files["a.bin"])
        return Mutation({"a.bin": changed}, what)
    i = rng.randrange(len(RECORDS))
    name, kind, dims, data = RECORDS[i]
    rank = length = None
    field = rng.choice(["type", "dims", "rank", "length", "name", "again"])
    if field == "type":
        kind = rng.choice([*range(-1, 42), 2**31 - 1])
    elif field == "dims":
        at = rng.randrange(len(dims))
        dims = (*dims[:at], max(-(2**31), min(2**31 - 1, near(rng, dims[at]))), *dims[at + 1 :])
    elif field == "rank":
        rank = rng.choice([-1, 0, 1, 2, 3, 4, 5, 2**31 - 1])
    elif field == "length":
        length = rng.choice([-1, 0, 1, 4, 1024, 1025, 2**31 - 1])
    elif field == "name":
        name = rng.choice([b"\xff\xfe", b"\x1b[2J", b"x" * 1025, b"a\nb", b"../x", b"\0"])
    records = [_bin_record(*record) for record in RECORDS]
    records[i] = _bin_record(name, kind, dims, data, rank, length)
    if field == "again":
        records.append(records[i])
    return Mutation({"a.bin": b"".join(records)}, f"{field}: {kind} {dims} {rank} {length} {name[:20]!r}")


def _read(file: str):
    def read(folder: Path):
        return {name: _plain(array) for name, array in dumps.read(folder / file).items()}

    return read


def _plain(array: np.ndarray) -> list:
    return [str(array.dtype), list(array.shape), np.ascontiguousarray(array).tobytes().hex()]


def _numpys(folder: Path):
    return {"a": _plain(np.load(folder / "a.npy", allow_pickle=False))}


def _numpys_zip(folder: Path):
    with zipfile.ZipFile(folder / "a.npz") as archive:
        entries = archive.infolist()
        if len({entry.filename for entry in entries}) != len(entries):
            raise ValueError("a name twice")
        loaded = {}
        for entry in entries:
            raw = io.BytesIO(archive.read(entry))
            loaded[entry.filename.removesuffix(".npy")] = _plain(np.load(raw, allow_pickle=False))
            if raw.read(1):
                raise ValueError(f"{entry.filename}: bytes left over")
    return loaded


def _bin_in_ten_lines(folder: Path):
    """Blocks are refsd's to expand: of them, the shape."""
    content, at, found, ours = (folder / "a.bin").read_bytes(), 0, {}, _read("a.bin")(folder)
    while at < len(content):
        rank, length, kind = struct.unpack_from("<3i", content, at)
        dims = struct.unpack_from(f"<{rank}i", content, at + 12)
        at += 12 + 4 * rank
        name = content[at : at + length].decode("utf-8", "backslashreplace") or "a"
        at += length
        if name in found:
            raise ValueError(f"{name} twice")
        if kind in dumps._GGML_SCALARS:
            dtype = dumps._GGML_SCALARS[kind]
            count = int(np.prod(dims[::-1], dtype=object)) if dims else 1
            found[name] = _plain(
                np.frombuffer(content, dtype, count, at).reshape(dims[::-1])
                if count
                else np.empty(dims[::-1], dtype)
            )
            at += count * dtype.itemsize
        else:
            found[name] = ours[name] if ours[name][1] == list(dims[::-1]) else None
            at += {b.ggml_id: b.bytes * int(np.prod(dims)) // b.block for b in dumps.BLOCK_TYPES.values()}[kind]
    return found


def _compared(file: str):
    """A dump of tensors against a golden in a file."""

    def commands(folder: Path) -> list[list[str]]:
        golden = folder / "golden.safetensors"
        save_file({name: np.ascontiguousarray(y, np.float64) for name, y in ARRAYS.items()}, golden)
        return [
            ["compare", str(folder / file), str(golden)],
            ["compare", str(folder / file), str(golden), "--json"],
        ]

    return commands


NPY = Kind(
    "npy",
    lambda folder: {k: {"a.npy": _saved(v)} for k, v in ARRAYS.items()},
    _mutate_npy,
    _read("a.npy"),
    _numpys,
    _compared("a.npy"),
)
NPZ = Kind(
    "npz",
    lambda folder: {"plain": {"a.npz": _zipped([(f"{k}.npy", _saved(v)) for k, v in ARRAYS.items()])}},
    _mutate_npz,
    _read("a.npz"),
    _numpys_zip,
    _compared("a.npz"),
)
BIN = Kind(
    "bin",
    lambda folder: {"plain": {"a.bin": b"".join(_bin_record(*record) for record in RECORDS)}},
    _mutate_bin,
    _read("a.bin"),
    _bin_in_ten_lines,
    _compared("a.bin"),
)
