"""torch's files, zipped and legacy: strides, storages, opcodes, the zip's records, any byte."""

import itertools
import pickle
import pickletools
import struct
import warnings
import zipfile
from pathlib import Path
from random import Random

from kind import Files, Kind, Mutation
from mutations import bytes_changed, near, number
from readings import tensors_read
from torch_by_pickle import read_legacy, read_zip
from torch_files import FLOATS, LEGACY, MAGIC, ZIPPED, legacy, state, storage, tensor, zipped

from refsd.files.formats import open_weights
from refsd.files.torch_objects import STORAGE_NAMES

FILE = "a.ckpt"
INTS = struct.pack("<4q", *range(4))
_TWO = storage("1", 4, "LongStorage")
STATE = {"a": tensor(), "b": tensor((3, 2), (1, 3)), "c": tensor((2,), (2,), 1), "d": tensor((), (), 5)}
STATE["e"] = tensor((2, 2), (2, 1), 0, _TWO)
STORAGES = (("0", FLOATS), ("1", INTS))
COUNTED = struct.pack("<q", 6) + FLOATS + struct.pack("<q", 4) + INTS


def _zip_examples(folder: Path) -> dict[str, Files]:
    return {"ours": {FILE: zipped(state(**STATE), STORAGES)}, "torch's": {FILE: ZIPPED.read_bytes()}}


def _legacy_examples(folder: Path) -> dict[str, Files]:
    ours = legacy(state(**STATE), ("0", "1"), COUNTED)
    return {"ours": {FILE: ours}, "torch's": {FILE: LEGACY.read_bytes()}}


def _tensor(rng: Random) -> tuple[bytes, str]:
    """A tensor whose size, strides, offset or storage are drawn."""
    rank = rng.randrange(5)
    size, stride = [[rng.choice([0, 1, 2, 3, 6]) for _ in range(rank)] for _ in range(2)]
    offset, key, numel = rng.choice([0, 0, 1, 5]), "0", 6
    wild = rng.choice(["size", "stride", "offset", "numel", "key", "kind", "nothing", "nothing"])
    kind = "FloatStorage"
    if wild in ("size", "stride") and rank:
        (size if wild == "size" else stride)[rng.randrange(rank)] = number(rng)
    elif wild == "offset":
        offset = number(rng)
    elif wild == "numel":
        numel = near(rng, 6)
    elif wild == "key":
        key = rng.choice(["1", "2", "", "../0", "0/", "\0", "data.pkl"])
    elif wild == "kind":
        kind = rng.choice([name.rpartition(".")[2] for name in STORAGE_NAMES] + ["QInt8Storage", "Storage"])
    return tensor(
        size, stride, offset, storage(key, numel, kind)
    ), f"{wild}: {size} {stride} {offset} {key} {numel} {kind}"


def _opcodes(rng: Random, pickled: bytes) -> tuple[bytes, str]:
    """One opcode removed, repeated, moved or replaced."""
    at = [place for _, _, place in pickletools.genops(pickled)] + [len(pickled)]
    pieces = [pickled[a:b] for a, b in itertools.pairwise(at)]
    i, j = rng.randrange(len(pieces)), rng.randrange(len(pieces))
    kind = rng.choice(["remove", "repeat", "move", "replace", "bytes"])
    if kind == "remove":
        del pieces[i]
    elif kind == "repeat":
        pieces.insert(i, pieces[i])
    elif kind == "move":
        pieces.insert(j, pieces.pop(i))
    elif kind == "replace":
        pieces[i] = rng.choice([pieces[j], bytes([rng.randrange(256)]), b"N", b"K\7", b"}", b"]", b")", b"0", b"2"])
    else:
        pieces[i], _ = bytes_changed(rng, pieces[i])
    return b"".join(pieces), f"{kind} opcode {i}"


def _mutate_zip(rng: Random, files: Files) -> Mutation:
    kind = rng.choice(
        ["tensor", "tensor", "opcodes", "opcodes", "zip", "zip", "record", "bytes", "entries", "data"]
    )
    if kind == "tensor":
        made, what = _tensor(rng)
        return Mutation({FILE: zipped(state(**STATE | {"f": made}), STORAGES)}, what, True)
    if kind == "bytes":
        changed, what = bytes_changed(rng, files[FILE])
        return Mutation({FILE: changed}, what)
    if kind == "record":
        content = files[FILE]
        sign = rng.choice([b"PK\1\2", b"PK\3\4", b"PK\5\6"])
        places = [i for i in range(len(content)) if content.startswith(sign, i)]
        at = rng.choice(places) + 4 + 2 * rng.randrange(20)
        code = rng.choice(["<H", "<I"])
        raw = struct.pack(code, number(rng) % 2 ** (8 * struct.calcsize(code)))
        return Mutation({FILE: content[:at] + raw + content[at + len(raw) :]}, f"{sign!r} record, byte {at}")
    pickled, storages, more, prefix, method = state(**STATE), list(STORAGES), [], "archive/", zipfile.ZIP_STORED
    if kind == "opcodes":
        pickled, what = _opcodes(rng, pickled)
    elif kind == "data":
        i = rng.randrange(2)
        changed, what = bytes_changed(rng, storages[i][1])
        storages[i] = (storages[i][0], changed)
        return Mutation({FILE: zipped(pickled, storages)}, f"storage {i}: {what}", changed not in (FLOATS, INTS))
    elif kind == "entries":
        more = [
            rng.choice([("archive/byteorder", b"big"), ("archive/data.pkl", pickled), ("archive/data/0", FLOATS)])
        ]
        more += [
            rng.choice(
                [("../evil", b"x"), ("b/data.pkl", pickled), ("archive/constants.pkl", b"x"), ("x" * 600, b"")]
            )
        ]
        what = f"more: {[name[:30] for name, _ in more]}"
    else:
        method = rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
        prefix = rng.choice(["", "a/b/", "/", "archive/", "..\\", "../", "archive/data/"])
        what = f"method {method}, folder {prefix!r}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a name that is there twice
        return Mutation({FILE: zipped(pickled, storages, prefix, more, method)}, what)


def _mutate_legacy(rng: Random, files: Files) -> Mutation:
    kind = rng.choice(["tensor", "tensor", "opcodes", "opcodes", "head", "keys", "counts", "bytes", "bytes"])
    pickled, keys, counted = state(**STATE), ["0", "1"], COUNTED
    if kind == "bytes":
        changed, what = bytes_changed(rng, files[FILE])
        return Mutation({FILE: changed}, what)
    if kind == "tensor":
        made, what = _tensor(rng)
        return Mutation({FILE: legacy(state(**STATE | {"f": made}), keys, counted)}, what, True)
    if kind == "opcodes":
        pickled, what = _opcodes(rng, pickled)
        return Mutation({FILE: legacy(pickled, keys, counted)}, what)
    if kind == "head":
        magic, version = rng.choice(
            [(MAGIC, 1000), (MAGIC + 1, 1001), (True, 1001), (MAGIC, 1001.0), (MAGIC, True)]
        )
        system = rng.choice([{}, [], {"little_endian": False}, {"little_endian": 1}, None])
        return Mutation(
            {FILE: legacy(pickled, keys, counted, magic, version, system)}, f"{magic} {version} {system}", True
        )
    if kind == "keys":
        keys = rng.choice(
            [["0"], ["1", "0"], ["0", "1", "1"], ["0", "2"], [0, 1], ("0", "1"), "01", ["0", "1", "2"], []]
        )
        raw = head_of(pickled) + pickle.dumps(keys, rng.choice([0, 2, 4])) + counted
        return Mutation({FILE: raw}, f"keys {keys!r}", True)
    at = rng.choice([0, 8 + len(FLOATS)])
    raw = struct.pack("<Q", near(rng, 6 if at == 0 else 4) % 2**64)
    return Mutation({FILE: legacy(pickled, keys, counted[:at] + raw + counted[at + 8 :])}, f"count at {at}", True)


def head_of(pickled: bytes) -> bytes:
    """A legacy file up to the end of its pickle."""
    whole = legacy(pickled, (), b"")
    return whole[: whole.index(pickled) + len(pickled)]


# refsd


def read(folder: Path):
    return tensors_read(open_weights(folder / FILE))


def commands(folder: Path) -> list[list[str]]:
    path, made = str(folder / FILE), str(folder / "out.safetensors")
    return [["info", path, "--tensors", "--values"], ["info", path, "--json"], ["dequant", path, "-o", made]]


TORCH_ZIP = Kind("torch-zip", _zip_examples, _mutate_zip, read, lambda folder: read_zip(folder / FILE), commands)
TORCH_LEGACY = Kind(
    "torch-legacy", _legacy_examples, _mutate_legacy, read, lambda folder: read_legacy(folder / FILE), commands
)
