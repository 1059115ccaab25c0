"""Dumps are read whole or refused in one line."""

import io
import struct
import warnings
import zipfile

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsd.golden import dumps
from refsd.golden.dumps import read
from refsd.kernels.quant import BLOCK_TYPES
from refsd.numerics.errors import BadInput

_X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


def _bin(x: np.ndarray, name=b"x", kind=0) -> bytes:
    head = struct.pack("<3i", x.ndim, len(name), kind)
    return head + struct.pack(f"<{x.ndim}i", *x.shape[::-1]) + name + x.tobytes()


def _npy(x: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, x)
    return file.getvalue()


def _written(tmp_path, name, data):
    path = tmp_path / name
    path.write_bytes(data)
    return path


def test_npy_is_called_as_its_file(tmp_path):
    np.testing.assert_array_equal(read(_written(tmp_path, "out.npy", _npy(_X)))["out"], _X)
    np.testing.assert_array_equal(read(_written(tmp_path, "out.npy", _npy(np.asfortranarray(_X))))["out"], _X)


@pytest.mark.parametrize("header", ["'shape': (2L, 3L)", "'shape': (2, 3), 'descr': '\\d'"])
def test_a_header_is_read_without_a_warning(tmp_path, header):
    """NumPy warns of Python 2's numbers and Python of such a string; a terminal shows it with a path of refsd's."""
    text = f"{{'descr': '<f4', 'fortran_order': False, {header}, }}".ljust(117).encode() + b"\n"
    data = b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text + np.arange(6, dtype="<f4").tobytes()
    path = _written(tmp_path, "a.npy", data)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        if "descr" in header:
            with pytest.raises(BadInput, match="not an npy file"):
                read(path)
        else:
            assert read(path)["a"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert not warned


def test_npz(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", x=_X, y=_X[0])
    found = read(tmp_path / "a.npz")
    np.testing.assert_array_equal(found["x"], _X)
    np.testing.assert_array_equal(found["y"], _X[0])


def test_a_folder_of_npy(tmp_path):
    (tmp_path / "deep").mkdir()
    _written(tmp_path, "a.npy", _npy(_X))
    _written(tmp_path / "deep", "b.npy", _npy(_X))
    assert read(tmp_path).keys() == {"a", "deep/b"}


def test_bin_has_the_fastest_dimension_first(tmp_path):
    found = read(_written(tmp_path, "t.bin", _bin(_X) + _bin(_X[0].astype(np.float16), b"half", 1)))
    np.testing.assert_array_equal(found["x"], _X)
    np.testing.assert_array_equal(found["half"], _X[0])


def test_bin_of_other_types(tmp_path):
    x = _X.astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(read(_written(tmp_path, "t.bin", _bin(x, kind=30)))["x"], x)
    q8_0 = BLOCK_TYPES["q8_0"]
    blocks = np.zeros((2, 34), np.uint8)
    blocks[:, 1], blocks[:, 2:] = 0x3C, 7
    head = struct.pack("<3i", 2, 0, 8) + struct.pack("<2i", 32, 2)
    found = read(_written(tmp_path, "t.bin", head + blocks.tobytes()))["t"]
    np.testing.assert_array_equal(found, q8_0.dequantize(blocks).reshape(2, 32))
    assert (found == 7).all()


def _empty(*shape):
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", 400) + header.replace(" ", "").encode().ljust(400)


_HUGE = (
    b"\x93NUMPY\x01\x00v\x00"
    + b"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999, 9), }".ljust(118)
)
_CODE = b"\x93NUMPY\x01\x00v\x00" + b"{'descr': __import__('os').abort(), 'fortran_order': 0, 'shape': (1,)}".ljust(
    118
)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.npy", b""),
        ("a.npy", _HUGE),
        ("a.npy", _CODE),
        ("a.npy", _npy(_X)[:-1]),
        ("a.npy", b"\x93NUMPY\x01\x00v\x00" + b"{'descr': '<f4', 'fortran_order': False, 'shape': (3, ".ljust(118)),
        ("a.npy", b"\x93NUMPY\x01\x00v\x00" + b"{'descr': '<f4', 'fortran_order': False, 'shape': (3".ljust(118)),
        ("a.npy", b"\x93NUMPY\x01\x00v\x00" + b"{'descr': '<f4', 'shape': ((3, 4)), 'x".ljust(118)),
        ("a.npy", _npy(_X[:1, :1, :1]).replace(b"(1, 1, 1)", b"(True, 1)")),
        ("a.npy", _npy(_X[:0]).replace(b"(0, 3, 4)", b"(False, )")),
        ("a.npy", _empty(0, 2**62)),
        ("a.npy", _empty(2**62, 0)),
        ("a.npy", _empty(*[1] * 70, 0)),
        ("a.npy", _npy(_X) + b"x"),
        ("a.npy", _npy(np.array([{}], object))[:200]),
        ("a.npy", _npy(np.array(["text"]))),
        ("a.npz", b"PK\x03\x04"),
        ("a.npz", b""),
        ("a.bin", b""),
        ("a.bin", b"\0" * 11),
        ("a.bin", struct.pack("<3i", 4, 0, 0) + struct.pack("<4i", *[2**31 - 1] * 4)),
        ("a.bin", struct.pack("<3i", 2, 0, 0) + struct.pack("<2i", -1, -4)),
        ("a.bin", struct.pack("<3i", 4, 0, 0) + struct.pack("<4i", 2**31 - 1, 2**31 - 1, 2**31 - 1, 0)),
        ("a.bin", struct.pack("<3i", 5, 0, 0)),
        ("a.bin", struct.pack("<3i", 1, 2**31 - 1, 0)),
        ("a.bin", struct.pack("<3i", -1, -1, -1)),
        ("a.bin", struct.pack("<3i", 0, 0, 99)),
        ("a.bin", struct.pack("<3i", 1, 0, 8) + struct.pack("<i", 31) + b"\0" * 99),
        ("a.pt", b"PK\x03\x04"),
    ],
)
def test_what_is_no_dump_is_refused(tmp_path, name, data):
    with pytest.raises(BadInput) as error:
        read(_written(tmp_path, name, data))
    assert "\n" not in str(error.value)
    assert name in str(error.value)


def test_a_zip_bomb_is_refused_before_it_unpacks(tmp_path):
    with (
        zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("x.npy", "w") as file,
    ):
        for _ in range(80):
            file.write(bytes(1 << 20))
    with pytest.raises(BadInput, match="1 entries say that they unpack to 83886080 bytes"):
        read(tmp_path / "a.npz")


def test_how_many_files_and_entries_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(dumps, "_MAX_FILES", 3)
    (tmp_path / "folder").mkdir()
    for i in range(3):
        (tmp_path / "folder" / f"{i}.npy").write_bytes(_npy(_X))
    np.savez(tmp_path / "a.npz", **{str(i): _X for i in range(3)})
    assert len(read(tmp_path / "folder")) == len(read(tmp_path / "a.npz")) == 3
    (tmp_path / "folder" / "3.npy").write_bytes(_npy(_X))
    np.savez(tmp_path / "a.npz", **{str(i): _X for i in range(4)})
    for path in (tmp_path / "folder", tmp_path / "a.npz"):
        with pytest.raises(BadInput, match=r"more than 3|4 entries"):
            read(path)


def test_an_empty_folder(tmp_path):
    with pytest.raises(BadInput, match=r"no \.npy file"):
        read(tmp_path)


@given(data=st.data(), kind=st.sampled_from(["npy", "npz", "bin"]))
def test_any_damage_is_one_error_or_a_tensor(tmp_path_factory, data, kind):
    if kind == "npz":
        file = io.BytesIO()
        np.savez(file, x=_X)
        whole = file.getvalue()
    else:
        whole = _npy(_X) if kind == "npy" else _bin(_X)
    broken = bytearray(whole[: data.draw(st.integers(0, len(whole)))])
    for _ in range(data.draw(st.integers(0, 3))):
        if broken:
            broken[data.draw(st.integers(0, min(len(broken) - 1, 150)))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("dump") / f"a.{kind}"
    path.write_bytes(broken)
    try:
        found = read(path)
    except BadInput as error:
        assert "\n" not in str(error)
    else:
        assert all(isinstance(x, np.ndarray) for x in found.values())


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_flipped_bit_in_an_npz_is_found(tmp_path, method):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        archive.writestr("x.npy", _npy(np.arange(1000.0)))
    content = bytearray(file.getvalue())
    content[len(content) // 2] ^= 1
    with pytest.raises(BadInput, match="not an npz file"):
        read(_written(tmp_path, "a.npz", bytes(content)))


def test_names_that_are_there_twice(tmp_path):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x.npy", _npy(_X))
        archive.writestr("y.npy", _npy(_X))
    with pytest.raises(BadInput, match="'x' is there twice"):
        read(_written(tmp_path, "a.npz", file.getvalue().replace(b"y.npy", b"x.npy")))
    with pytest.raises(BadInput, match="is there twice"):
        read(_written(tmp_path, "a.bin", _bin(_X) * 2))


def test_many_small_bombs_are_one(tmp_path):
    """Each entry may unpack to much; all of them together may not."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for i in range(4):
            archive.writestr(f"{i}.npy", bytes(20 << 20))
    with pytest.raises(BadInput, match="4 entries say that they unpack to 83886080 bytes"):
        read(_written(tmp_path, "a.npz", file.getvalue()))
