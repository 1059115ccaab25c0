"""Read tensors that an engine left in files: npy, npz, a folder of npy, and stable-diffusion.cpp's .bin.

Lengths in a header are checked against the file before anything is allocated; no pickle is executed.
"""

import itertools
import math
import mmap
import os
import struct
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import ml_dtypes
import numpy as np
from numpy.lib import format as npy

from refsd.golden.file_kinds import NPY, START, ZEROS, ZIP, kind
from refsd.golden.input_file import open_input
from refsd.kernels.quant import BLOCK_TYPES
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import shape_problem

SUFFIXES = (".npy", ".npz", ".bin")

# ggml's type numbers -> dtype. Source: ggml.h, enum ggml_type.
_GGML_SCALARS = {
    0: np.dtype("<f4"),
    1: np.dtype("<f2"),
    24: np.dtype("i1"),
    25: np.dtype("<i2"),
    26: np.dtype("<i4"),
    27: np.dtype("<i8"),
    28: np.dtype("<f8"),
    30: np.dtype(ml_dtypes.bfloat16),
}
_GGML_MAX_DIMS = 4
_MAX_NAME = 1024
_MAX_FILES = 10_000
# Refuse zip bombs: contents above _FREE bytes and _MAX_RATIO times the file's size. Smaller contents may have any
# ratio, since a constant tensor deflates by a thousand.
_FREE = 64 << 20
_MAX_RATIO = 100


def read(path: Path) -> dict[str, np.ndarray]:
    """Read a dump -> its tensors by name; a tensor without a name gets the file's.

    Raises BadInput for another format, or an incomplete file.
    """
    if path.is_dir():
        return _folder(path)
    if path.suffix not in _READERS:
        expected = f".safetensors, .gguf, {', '.join(SUFFIXES)} or a folder"
        raise BadInput(f"{path}: unknown kind of dump: expected {expected}")
    with open_input(path, f"a dump of tensors ({path.suffix})") as file:
        try:
            return _READERS[path.suffix](file, os.fstat(file.fileno()).st_size, path)
        except OSError as error:
            raise BadInput(f"{path}: cannot read the file: {error.strerror or error}") from None


def _folder(path: Path) -> dict[str, np.ndarray]:
    files = sorted(itertools.islice(path.rglob("*.npy"), _MAX_FILES + 1))
    if not files:
        raise BadInput(f"{path}: no .npy file in this folder")
    if len(files) > _MAX_FILES:
        raise BadInput(f"{path}: more than {_MAX_FILES} .npy files in this folder")
    return {file.relative_to(path).with_suffix("").as_posix(): read(file)[file.stem] for file in files}


def _npy_header(file: BinaryIO, what: str) -> tuple[tuple[int, ...], bool, np.dtype]:
    try:
        version = npy.read_magic(file)
        read_header = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(version)
        if read_header is None:
            raise BadInput(f"{what}: npy version {version}, expected 1.0 or 2.0")
        with warnings.catch_warnings(action="ignore"):  # about Python 2's numbers, and escapes in strings
            shape, fortran, dtype = read_header(file)
    except BadInput:
        raise
    except Exception as error:  # NumPy reads the header with ast and tokenize, which raise many types
        raise BadInput(f"{what}: not an npy file: {_line(error)}") from None
    if dtype.hasobject or dtype.kind not in "fiub":
        raise BadInput(f"{what}: dtype {dtype}, expected floats or integers; save it as float32")
    if any(isinstance(size, bool) for size in shape):
        raise BadInput(f"{what}: shape {list(shape)}, expected whole numbers")
    if problem := shape_problem(shape):
        raise BadInput(f"{what}: shape {list(shape)}: {problem}")
    return shape, fortran, dtype


def _npy(file: BinaryIO, size: int, what: str) -> np.ndarray:
    shape, fortran, dtype = _npy_header(file, what)
    expected = math.prod(shape) * dtype.itemsize
    if size - file.tell() != expected:
        raise BadInput(f"{what}: {size - file.tell()} bytes of data, {list(shape)} of {dtype} has {expected}")
    flat = np.frombuffer(file.read(expected), dtype)
    return flat.reshape(shape, order="F" if fortran else "C")


def _called(file: BinaryIO, path: Path, expected: str) -> str:
    """Return the file's name for a message, and what the file really is if its suffix is wrong."""
    found = kind(file.read(START))
    file.seek(0)
    return f"{path}" if found in ("", expected) else f"{path}: {found}"


def _npz(file: BinaryIO, size: int, path: Path) -> dict[str, np.ndarray]:
    tensors: dict[str, np.ndarray] = {}
    called = _called(file, path, ZIP)
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            unpacked = sum(entry.file_size for entry in entries)
            if len(entries) > _MAX_FILES or (unpacked > _FREE and unpacked > _MAX_RATIO * size):
                raise BadInput(f"{path}: {len(entries)} entries say that they unpack to {unpacked} bytes")
            for entry in entries:
                name = entry.filename.removesuffix(".npy")
                if name == entry.filename:
                    raise BadInput(f"{path}: {entry.filename!r} is no .npy")
                if name in tensors:
                    raise BadInput(f"{path}: {name!r} is there twice")
                with archive.open(entry) as content:
                    tensors[name] = _npy(content, entry.file_size, f"{path}: {name}")  # type: ignore[arg-type]
                    content.read(1)  # read to the end, where zipfile checks the CRC
    except (BadInput, MemoryError):
        raise
    except Exception as error:  # zipfile's own, zlib.error, lzma.LZMAError and others of broken streams
        raise BadInput(f"{called}: not an npz file: {_line(error)}") from None
    return tensors


def _bin(file: BinaryIO, size: int, path: Path) -> dict[str, np.ndarray]:
    """Read records of i32 n_dims, i32 name length, i32 ggml type, i32 dims (fastest first), name, data."""
    if size == 0:
        raise BadInput(f"{path}: an empty file")
    tensors: dict[str, np.ndarray] = {}
    called = _called(file, path, ZEROS)
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        at = 0
        while at < size:
            name, tensor, at = _bin_tensor(data, at, size, called)
            if (name or path.stem) in tensors:
                raise BadInput(f"{path}: tensor {name or path.stem!r} is there twice")
            tensors[name or path.stem] = tensor
    return tensors


def _bin_tensor(data: mmap.mmap, at: int, size: int, path: str) -> tuple[str, np.ndarray, int]:
    what = f"{path}: the tensor at byte {at}"
    if size - at < 12:
        raise BadInput(f"{what} is cut off")
    n_dims, length, kind = struct.unpack_from("<3i", data, at)
    at += 12
    if not 0 <= n_dims <= _GGML_MAX_DIMS or not 0 <= length <= _MAX_NAME or size - at < 4 * n_dims + length:
        raise BadInput(
            f"{what} has {n_dims} dimensions and a name of {length} bytes: not stable-diffusion.cpp's .bin"
        )
    dims = struct.unpack_from(f"<{n_dims}i", data, at)
    at += 4 * n_dims
    name = data[at : at + length].decode("utf-8", "backslashreplace")
    at += length
    shape = dims[::-1]
    if problem := shape_problem(shape):
        raise BadInput(f"{what} has the shape {list(shape)}: {problem}")
    if kind in _GGML_SCALARS:
        bytes_ = math.prod(shape) * _GGML_SCALARS[kind].itemsize
    else:
        block_type = next((b for b in BLOCK_TYPES.values() if b.ggml_id == kind), None)
        if block_type is None or not dims or dims[0] % block_type.block:
            raise BadInput(
                f"{what} has ggml type {kind} and rows of {dims[0] if dims else 0}: refsd cannot read it"
            )
        bytes_ = math.prod(shape) // block_type.block * block_type.bytes
    if size - at < bytes_:
        raise BadInput(f"{what}, {list(shape)}, needs {bytes_} bytes, {size - at} are left")
    raw = np.frombuffer(data[at : at + bytes_], np.uint8)
    if kind in _GGML_SCALARS:
        return name, raw.view(_GGML_SCALARS[kind]).reshape(shape), at + bytes_
    return name, block_type.dequantize(raw.reshape(-1, block_type.bytes)).reshape(shape), at + bytes_


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


_READERS: dict[str, Callable[[BinaryIO, int, Path], dict[str, np.ndarray]]] = {
    ".npy": lambda file, size, path: {path.stem: _npy(file, size, _called(file, path, NPY))},
    ".npz": _npz,
    ".bin": _bin,
}
