"""Tensors that an engine left in files: npy, npz, a folder of npy, and stable-diffusion.cpp's .bin.

Lengths in a header are checked against the file before anything is allocated; no pickle is executed.
"""

import mmap
import struct
import zipfile
from pathlib import Path
from typing import BinaryIO

import ml_dtypes
import numpy as np
from numpy.lib import format as npy

from refsd.golden.errors import BadInput
from refsd.kernels.quant import BLOCK_TYPES

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
# A constant tensor deflates by a thousand; what is larger than this and deflates further is refused.
_FREE = 64 << 20
_MAX_RATIO = 100


def read(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a dump, by name; a file that holds one without a name is called as the file.

    Raises BadInput for what is none of these formats, or not whole.
    """
    if path.is_dir():
        return _folder(path)
    try:
        if path.suffix == ".npz":
            return _npz(path)
        with open(path, "rb") as file:
            if path.suffix == ".npy":
                return {path.stem: _npy(file, path.stat().st_size, str(path))}
            if path.suffix == ".bin":
                return _bin(file, path.stat().st_size, path)
    except OSError as error:
        raise BadInput(f"{path}: cannot read the file: {error.strerror or error}") from None
    raise BadInput(f"{path}: unknown kind of dump: expected .safetensors, .gguf, {', '.join(SUFFIXES)} or a folder")


def _folder(path: Path) -> dict[str, np.ndarray]:
    files = sorted(path.rglob("*.npy"))
    if not files:
        raise BadInput(f"{path}: no .npy file in this folder")
    if len(files) > _MAX_FILES:
        raise BadInput(f"{path}: {len(files)} files, at most {_MAX_FILES} expected")
    return {file.relative_to(path).with_suffix("").as_posix(): read(file)[file.stem] for file in files}


def _npy_header(file: BinaryIO, what: str) -> tuple[tuple[int, ...], bool, np.dtype]:
    try:
        version = npy.read_magic(file)
        read_header = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(version)
        if read_header is None:
            raise BadInput(f"{what}: npy version {version}, expected 1.0 or 2.0")
        shape, fortran, dtype = read_header(file)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError, OverflowError, EOFError) as error:
        raise BadInput(f"{what}: not an npy file: {_line(error)}") from None
    if dtype.hasobject or dtype.kind not in "fiub":
        raise BadInput(f"{what}: dtype {dtype}, expected floats or integers; save it as float32")
    if any(size < 0 for size in shape):
        raise BadInput(f"{what}: shape {list(shape)}")
    return shape, fortran, dtype


def _npy(file: BinaryIO, size: int, what: str) -> np.ndarray:
    shape, fortran, dtype = _npy_header(file, what)
    expected = _count(shape) * dtype.itemsize
    if size - file.tell() != expected:
        raise BadInput(f"{what}: {size - file.tell()} bytes of data, {list(shape)} of {dtype} has {expected}")
    flat = np.frombuffer(file.read(expected), dtype)
    return flat.reshape(shape, order="F" if fortran else "C")


def _npz(path: Path) -> dict[str, np.ndarray]:
    tensors = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                if entry.file_size > _FREE and entry.file_size > _MAX_RATIO * entry.compress_size:
                    raise BadInput(f"{path}: {entry.filename!r} says that it unpacks to {entry.file_size} bytes")
                if not entry.filename.endswith(".npy"):
                    raise BadInput(f"{path}: {entry.filename!r} is no .npy")
                with archive.open(entry) as file:
                    name = entry.filename.removesuffix(".npy")
                    tensors[name] = _npy(file, entry.file_size, f"{path}: {name}")  # type: ignore[arg-type]
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, ValueError) as error:
        raise BadInput(f"{path}: not an npz file: {_line(error)}") from None
    except Exception as error:
        # zlib.error, lzma.LZMAError and what else a broken stream raises
        if isinstance(error, BadInput | OSError):
            raise
        raise BadInput(f"{path}: not an npz file: {_line(error)}") from None
    return tensors


def _bin(file: BinaryIO, size: int, path: Path) -> dict[str, np.ndarray]:
    """i32 n_dims, i32 name length, i32 ggml type, i32 dims (fastest first), name, data; one after another."""
    if size == 0:
        raise BadInput(f"{path}: an empty file")
    tensors: dict[str, np.ndarray] = {}
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        at = 0
        while at < size:
            name, tensor, at = _bin_tensor(data, at, size, path)
            tensors[name or path.stem] = tensor
    return tensors


def _bin_tensor(data: mmap.mmap, at: int, size: int, path: Path) -> tuple[str, np.ndarray, int]:
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
    if any(n < 0 for n in dims):
        raise BadInput(f"{what} has dimensions {list(dims)}")
    shape = dims[::-1]
    if kind in _GGML_SCALARS:
        bytes_ = _count(shape) * _GGML_SCALARS[kind].itemsize
    else:
        block_type = next((b for b in BLOCK_TYPES.values() if b.ggml_id == kind), None)
        if block_type is None or not dims or dims[0] % block_type.block:
            raise BadInput(
                f"{what} has ggml type {kind} and rows of {dims[0] if dims else 0}: refsd cannot read it"
            )
        bytes_ = _count(shape) // block_type.block * block_type.bytes
    if size - at < bytes_:
        raise BadInput(f"{what}, {list(shape)}, needs {bytes_} bytes, {size - at} are left")
    raw = np.frombuffer(data[at : at + bytes_], np.uint8)
    if kind in _GGML_SCALARS:
        return name, raw.view(_GGML_SCALARS[kind]).reshape(shape), at + bytes_
    return name, block_type.dequantize(raw.reshape(-1, block_type.bytes)).reshape(shape), at + bytes_


def _count(shape: tuple[int, ...]) -> int:
    """The product in Python's integers, which do not overflow."""
    count = 1
    for size in shape:
        count *= size
    return count


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
