"""The formats of `refsd export`: npy and bin (a file for each tensor), safetensors and gguf (one for all), onnx."""

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import ml_dtypes
import msgspec
import numpy as np

from refsd.files.tensor_files import write_tensors
from refsd.files.writers import Advance, Spec, write_gguf
from refsd.kernels.quant import BLOCK_TYPES
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import SCALAR_TYPES, StoredTensor

# ggml's GGML_MAX_NAME, less the zero at the end; GGML_MAX_DIMS.
_GGUF_NAME, _GGUF_AXES = 63, 4


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tensor in the index.

    file:   relative to the index; a container names its tensors as the index does
    type:   "f32", "f64", "bf16", "q4_k", ...
    shape:  of its values, outermost axis first
    stored: dtype and shape in the file, where they are others: blocks are bytes, npy has no bfloat16
    """

    file: str
    type: str
    shape: tuple[int, ...]
    stored: str = ""


# name -> type and shape; name -> tensor, read when it is written
Tensors = Mapping[str, Callable[[], StoredTensor]]


class Format(NamedTuple):
    """
    write:  folder, name of the group, specs, tensors, advance -> the index entries
    checks: raises BadInput for a tensor that the format cannot hold: what it is, name, spec
    """

    write: Callable[[Path, str, Mapping[str, Spec], Iterable[StoredTensor], Advance], dict[str, Entry]]
    checks: Callable[[str, str, Spec], None]


def _write_each(suffix: str, content: Callable[[Path, np.ndarray], None]):
    """Write each tensor to a file of its own, <group>/<name><suffix>; {type} in the suffix is the tensor's."""

    def write(folder, group, specs, tensors, advance) -> dict[str, Entry]:
        entries: dict[str, Entry] = {}
        for (name, spec), tensor in zip(specs.items(), tensors, strict=True):
            file = f"{group}/{_file_name(name)}{suffix.format(type=spec.type)}"
            if any(entry.file.lower() == file.lower() for entry in entries.values()):
                raise BadInput(f"{group}: two tensors would be called {file}; write safetensors")
            array = tensor.storable()
            stored = ""
            if array.dtype.type.__module__ == ml_dtypes.__name__:
                array = array.view(np.dtype(f"u{array.dtype.itemsize}"))
            if array.shape != spec.shape or SCALAR_TYPES.get(spec.type) != array.dtype:
                stored = f"{array.dtype.name} {list(array.shape)}"
            path = folder / file
            path.parent.mkdir(parents=True, exist_ok=True)
            content(path, array.astype(array.dtype.newbyteorder("<"), copy=False))
            entries[name] = Entry(file, spec.type, spec.shape, stored)
            advance(spec.nbytes)
        return entries

    return write


def _file_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.\[\]-]", "_", name)


def _save_npy(path: Path, array: np.ndarray) -> None:
    np.save(path, array, allow_pickle=False)


def _save_bin(path: Path, array: np.ndarray) -> None:
    path.write_bytes(np.ascontiguousarray(array).tobytes())


def _safetensors(folder, group, specs, tensors, advance) -> dict[str, Entry]:
    file = f"{group}.safetensors"
    flat = {name: _stored_spec(spec) for name, spec in specs.items()}
    bytes_of = (StoredTensor("u8", y.shape, y) if t.type in BLOCK_TYPES else t for t, y in _with_bytes(tensors))
    write_tensors(folder / file, flat, bytes_of, advance=advance)
    return {
        name: Entry(file, spec.type, spec.shape, "" if flat[name] == spec else f"uint8 {list(flat[name].shape)}")
        for name, spec in specs.items()
    }


def _with_bytes(tensors: Iterable[StoredTensor]):
    return ((tensor, tensor.storable()) for tensor in tensors)


def _stored_spec(spec: Spec) -> Spec:
    if spec.type not in BLOCK_TYPES:
        return spec
    block = BLOCK_TYPES[spec.type]
    return Spec("u8", (*spec.shape[:-1], spec.shape[-1] // block.block * block.bytes))


def _gguf(folder, group, specs, tensors, advance) -> dict[str, Entry]:
    file = f"{group}.gguf"
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    write_gguf(folder / file, specs, tensors, "refsd", advance)
    return {name: Entry(file, spec.type, spec.shape) for name, spec in specs.items()}


def _check_gguf(what: str, name: str, spec: Spec) -> None:
    fault = ""
    if len(spec.shape) > _GGUF_AXES:
        fault = f"has {len(spec.shape)} axes, ggml reads {_GGUF_AXES}"
    elif len(name.encode()) > _GGUF_NAME:
        fault = f"has a name of {len(name.encode())} bytes, ggml reads {_GGUF_NAME}"
    elif spec.type in ("bool", "u8", "f8_e4m3", "f8_e5m2", "q2_0"):
        fault = f"is {spec.type}, which refsd cannot write to GGUF"
    if fault:
        raise BadInput(f"{what}: {name} {fault}; write --format safetensors")


def _check_nothing(what: str, name: str, spec: Spec) -> None:
    pass


FORMATS: dict[str, Format] = {
    "npy": Format(_write_each(".npy", _save_npy), _check_nothing),
    "safetensors": Format(_safetensors, _check_nothing),
    "bin": Format(_write_each(".{type}.bin", _save_bin), _check_nothing),
    "gguf": Format(_gguf, _check_gguf),
    # What stands beside the models of refsd/onnx/export.py.
    "onnx": Format(_write_each(".npy", _save_npy), _check_nothing),
}
