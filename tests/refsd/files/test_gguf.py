"""What gguf-py writes is read; what the format forbids is refused before anything is allocated."""

import re
import struct
import tracemalloc

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter

from refsd.files.formats import open_weights
from refsd.files.gguf import TYPES
from refsd.kernels.quant import BLOCK_TYPES
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import SCALAR_TYPES


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.gguf"


def write(path, arrays, fill=lambda writer: None):
    """arrays: name -> array, or (uint8 array, type)"""
    writer = GGUFWriter(path, "test")
    fill(writer)
    for name, array in arrays.items():
        if isinstance(array, tuple):
            writer.add_tensor(name, array[0], raw_dtype=array[1])
        else:
            writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_the_table_of_types_is_gguf_pys():
    assert TYPES.keys() == {int(kind) for kind in gguf.GGML_QUANT_SIZES} | {41, 42}  # younger than some gguf-py
    sizes = {**gguf.GGML_QUANT_SIZES, gguf.GGMLQuantizationType.Q8_1: (32, 36)}  # gguf-py: 40
    for kind, (block, size) in sizes.items():
        assert TYPES[int(kind)] == (kind.name.lower(), block, size)


@pytest.mark.smoke
def test_reads_what_gguf_py_writes(path):
    rng = np.random.default_rng(0)
    arrays = {
        "matrix": rng.standard_normal((3, 5)).astype(np.float32),
        "kernel": rng.standard_normal((4, 3, 2, 2)).astype(np.float16),
        "double": rng.standard_normal(7),
        "ids": np.arange(4, dtype=np.int32),
    }
    weights = open_weights(write(path, arrays))
    assert weights.metadata["general.architecture"] == "test"
    assert weights.keys() == arrays.keys()
    for name, array in arrays.items():
        tensor = weights[name]
        assert tensor.shape == array.shape
        assert tensor.data.dtype == array.dtype
        np.testing.assert_array_equal(tensor.values(), array)


@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0", "Q4_K", "Q6_K"])
def test_packed_types_are_dequantized(path, kind):
    of = GGMLQuantizationType[kind]
    raw = np.random.default_rng(0).integers(0, 60, (3, 2 * TYPES[of].bytes), np.uint8)
    weights = open_weights(write(path, {"w": (raw, of)}))
    tensor = weights["w"]
    assert (tensor.type, tensor.shape) == (kind.lower(), (3, 2 * TYPES[of].block))
    np.testing.assert_array_equal(tensor.values(), gguf.dequantize(raw, of))


@pytest.mark.parametrize("number", sorted(TYPES))
def test_every_type_of_the_table_is_read(path, number):
    """gguf-py writes some of them; here the number in the file is changed to the others."""
    kind = TYPES[number]
    data = np.random.default_rng(3).integers(0, 32, (2, 3 * kind.bytes), np.uint8)
    file = write(path, {"w": (data, GGMLQuantizationType.I8)})
    at = file.read_bytes().index(struct.pack("<QQI", 3 * kind.bytes, 2, GGMLQuantizationType.I8))
    with open(file, "r+b") as opened:
        opened.seek(at)
        opened.write(struct.pack("<QQI", 3 * kind.block, 2, number))
    tensor = open_weights(file)["w"]
    assert tensor.type == kind.name and tensor.shape == (2, 3 * kind.block)
    if kind.name in BLOCK_TYPES:
        expected = BLOCK_TYPES[kind.name].dequantize(data.reshape(-1, kind.bytes)).reshape(2, -1)
    else:
        expected = data.view(SCALAR_TYPES[kind.name])
    assert tensor.values().tobytes() == expected.tobytes()


def test_every_kind_of_metadata_is_stepped_over(path):
    def fill(writer):
        for kind in (
            "uint8",
            "int8",
            "uint16",
            "int16",
            "uint32",
            "int32",
            "uint64",
            "int64",
            "float32",
            "float64",
        ):
            getattr(writer, f"add_{kind}")(kind, 1)
        writer.add_bool("bool", True)
        writer.add_string("text", "a cat")
        writer.add_array("short", [1, 2])
        writer.add_array("long", list(range(100)))
        writer.add_array("words", ["a", "b"])

    weights = open_weights(write(path, {"w": np.ones(3, np.float32)}, fill))
    said = weights.metadata
    assert said["text"] == "a cat"
    assert said["bool"] is True
    assert said["short"] == (1, 2)
    assert said["long"].length == 100
    assert said["words"].length == 2
    np.testing.assert_array_equal(weights["w"].values(), [1, 1, 1])


def test_comfyui_keeps_the_original_shape_apart(path):
    def fill(writer):
        writer.add_array("comfy.gguf.orig_shape.w", [2, 4, 2, 2])

    weights = open_weights(write(path, {"w": np.arange(32, dtype=np.float32).reshape(8, 4)}, fill))
    assert weights["w"].values().shape == (2, 4, 2, 2)


# A file made by hand, a field at a time.


def text(value):
    raw = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(raw)) + raw


def info(name="w", dims=(2,), kind=0, offset=0):
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def made(infos=None, kvs=(), magic=b"GGUF", version=3, tensors=None, entries=None, data=b"\0" * 32):
    infos = [info()] if infos is None else infos
    head = magic + struct.pack("<I", version)
    head += struct.pack("<QQ", len(infos) if tensors is None else tensors, len(kvs) if entries is None else entries)
    head += b"".join(kvs) + b"".join(infos)
    return head + b"\0" * (-len(head) % 32) + data


def kv(key, kind, raw):
    return text(key) + struct.pack("<I", kind) + raw


def array(kind, n, raw=b""):
    return struct.pack("<IQ", kind, n) + raw


def test_the_file_made_by_hand_is_good(path):
    path.write_bytes(made())
    assert open_weights(path)["w"].shape == (2,)


HOSTILE = {
    "another magic": (made(magic=b"GGML"), "does not begin"),
    "version 1": (made(version=1), "version 1"),
    "version 4": (made(version=4), "version 4"),
    "big-endian": (made(version=3 << 24), "big-endian"),
    "cut in the counts": (made()[:12], "cut short"),
    "cut in a tensor's info": (made()[:50], "cut short"),
    "cut in a name": (made([info("a long name, so that its tensor has room")])[:50], "cut short"),
    "cut in the data": (made(data=b"\0" * 4), "cut short"),
    "2^63 tensors": (made(tensors=2**63), "claims 9223372036854775808 tensors"),
    "more tensors than fit": (made(tensors=1000), "claims 1000 tensors"),
    "2^62 metadata entries": (made(entries=2**62), "metadata entries"),
    "a name of 2^60 bytes": (made([struct.pack("<Q", 2**60) + b"w" * 64]), "bytes long"),
    "a name that is not UTF-8": (made([info(b"\xff\xfe")]), "not UTF-8"),
    "a name twice": (made([info(), info(offset=32)], data=b"\0" * 64), "twice"),
    "key that is not UTF-8": (made(kvs=[kv(b"\xff", 4, b"\0" * 4)]), "not UTF-8"),
    "a key twice": (made(kvs=[kv("a", 4, b"\0" * 4)] * 2), '"a" twice'),
    "unknown value type": (made(kvs=[kv("a", 13, b"\0" * 8)]), "value type 13"),
    "an array of 2^61": (made(kvs=[kv("a", 9, array(4, 2**61))]), "cut short"),
    "more texts than fit": (made(kvs=[kv("a", 9, array(8, 1000))]), "room for fewer"),
    "texts of 2^61": (made(kvs=[kv("a", 9, array(8, 2**61))]), "room for fewer"),
    "arrays of unknown": (made(kvs=[kv("a", 9, array(77, 1, b"\0" * 64))]), "value type 77"),
    "arrays in arrays": (
        made(kvs=[kv("a", 9, array(9, 1, array(9, 1, array(9, 1, array(9, 1, b"\0" * 64)))))]),
        "nested",
    ),
    "alignment 0": (made(kvs=[kv("general.alignment", 4, struct.pack("<I", 0))]), "general.alignment is 0"),
    "alignment 33": (made(kvs=[kv("general.alignment", 4, struct.pack("<I", 33))]), "power of two"),
    "alignment 2^31": (made(kvs=[kv("general.alignment", 4, struct.pack("<I", 2**31))]), "power of two"),
    "alignment as text": (made(kvs=[kv("general.alignment", 8, text("x" * 500))]), "power of two"),
    "five dimensions": (made([info(dims=(1,) * 5)]), "5 dimensions"),
    "2^32 - 1 dimensions": (made([text("w") + struct.pack("<I", 2**32 - 1) + b"\0" * 64]), "dimensions"),
    "giant size": (made([info(dims=(2**62,))]), "2\\^48"),
    "sizes that overflow": (made([info(dims=(2**32, 2**32))]), "2\\^48"),
    "giant but empty": (made([info(dims=(2**63, 0))]), "2\\^48"),
    "unknown type": (made([info(kind=5)]), "unknown type 5"),
    "type 2^31": (made([info(kind=2**31)]), "unknown type"),
    "half a block": (made([info(dims=(16,), kind=2)]), "multiple of 32"),
    "offset out of range": (made([info(offset=2**20)]), "hole"),
    "offset 2^64 - 32": (made([info(offset=2**64 - 32)]), "hole"),
    "offset not aligned": (made([info(offset=4)]), "alignment"),
    "overlap": (made([info(), info("v")]), "overlaps"),
    "overlap of a long one": (made([info(dims=(16,)), info("v", offset=32)], data=b"\0" * 64), "overlaps"),
    "a hole": (made([info(), info("v", offset=64)], data=b"\0" * 96), "hole"),
    "more than the last tensor": (made(data=b"\0" * 64), '"w" leaves a hole behind it: .* the file ends after 64'),
    "an original shape that does not fit": (
        made(kvs=[kv("comfy.gguf.orig_shape.w", 9, array(5, 2, struct.pack("<ii", 3, 4)))]),
        "orig_shape",
    ),
    "an original shape with negative sizes": (
        made(kvs=[kv("comfy.gguf.orig_shape.w", 9, array(5, 2, struct.pack("<ii", -1, -2)))]),
        "orig_shape",
    ),
    "an original shape that is a number": (made(kvs=[kv("comfy.gguf.orig_shape.w", 4, b"\2\0\0\0")]), "orig_shape"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile(path, case):
    content, says = HOSTILE[case]
    path.write_bytes(content)
    tracemalloc.start()
    with pytest.raises(BadInput) as error:
        open_weights(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    message = str(error.value)
    assert message.startswith(f"{path}: ")
    said = message.removeprefix(f"{path}: ")
    assert re.search(says, said)
    assert said.isprintable()
    assert len(said) < 400
    assert peak < 2**23


def test_a_long_metadata_is_bounded(path, monkeypatch):
    monkeypatch.setattr("refsd.files.gguf.MAX_HEADER", 64)
    path.write_bytes(made(kvs=[kv("a", 8, text("x" * 100))]))
    with pytest.raises(BadInput, match="longer than 64"):
        open_weights(path)


def test_many_texts_are_bounded(path, monkeypatch):
    monkeypatch.setattr("refsd.files.gguf.MAX_ARRAY", 4)
    path.write_bytes(made(kvs=[kv("a", 9, array(8, 2, text("") * 2)), kv("b", 9, array(8, 3, text("") * 3))]))
    with pytest.raises(BadInput, match='"b": an array claims 3 elements'):
        open_weights(path)


# Three tensors of 64 elements: f32 (256 bytes), q8_0 (68, padded to 96), f16 (128).
LAYOUT = {"a": (0, 0), "b": (8, 256), "c": (1, 352)}


def laid(size=480, **changed):
    infos = [info(name, (64,), *where) for name, where in (LAYOUT | changed).items()]
    return made(infos, data=b"\0" * size)


WRONG_TYPES = {
    "larger": (laid(a=(27, 0)), '"a" overlaps what follows: i64 [64] takes 512 bytes, and "b" begins after 256'),
    "smaller": (laid(a=(1, 0)), '"a" leaves a hole behind it: f16 [64] takes 128 bytes, and "b" begins after 256'),
    "larger in the middle": (laid(b=(0, 256)), '"b" overlaps what follows: f32 [64] takes 256 bytes'),
    "smaller in the middle": (laid(b=(2, 256)), '"b" leaves a hole behind it: q4_0 [64] takes 36 bytes'),
    "larger at the end": (
        laid(c=(0, 352)),
        '"c" ends at byte 736 of 608: the file is cut short, or its type, f32,',
    ),
    "smaller at the end": (laid(c=(2, 352)), '"c" leaves a hole behind it: q4_0 [64] takes 36 bytes, and the file'),
    "an offset, though": (laid(b=(8, 288)), '"b" leaves a hole before it: it begins at byte 416, 384 expected'),
    "an earlier offset": (laid(b=(8, 224)), '"b" overlaps the one before it: it begins at byte 352, 384 expected'),
    "the first offset": (laid(a=(0, 32)), '"a" leaves a hole before it'),
    "a file cut short": (laid(size=400), '"c" ends at byte 608 of 528: the file is cut short'),
}


@pytest.mark.parametrize("case", WRONG_TYPES)
def test_a_wrong_type_is_told_of_the_tensor_that_has_it(path, case):
    path.write_bytes(laid())
    assert open_weights(path)["b"].type == "q8_0"
    content, says = WRONG_TYPES[case]
    path.write_bytes(content)
    with pytest.raises(BadInput) as error:
        open_weights(path)
    assert str(error.value).startswith(f"{path}: tensor {says}")


def test_types_that_would_fit_are_offered(path):
    path.write_bytes(laid(b=(2, 256)))
    with pytest.raises(BadInput, match="its type may be wrong: q8_0 or q8_1 would fit; convert the file again"):
        open_weights(path)
    path.write_bytes(laid(c=(0, 352)))
    with pytest.raises(BadInput, match="or its type, f32, is wrong: f16 or i16 or bf16 would fit"):
        open_weights(path)
