"""Write named tensors to a file in the format that its suffix names: .safetensors, .npz, or .npy for one tensor."""

import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import IO

import ml_dtypes
import numpy as np
from numpy.lib import format as npy

from refsd.files.stored import shown
from refsd.files.writers import Advance, Spec, write_safetensors
from refsd.golden.output_file import whole_file
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import SCALAR_TYPES, StoredTensor, stored

# Types that NumPy can write: those whose dtype does not come from ml_dtypes.
_NUMPY = {name for name, dtype in SCALAR_TYPES.items() if dtype.type.__module__ != ml_dtypes.__name__}
_EPOCH = 1980, 1, 1, 0, 0, 0  # a fixed date in the zip, so that the same tensors give the same bytes


def check_name(path: Path, names: Iterable[str] | None = None, types: Iterable[str] = ()) -> None:
    """Raise BadInput if the file name's suffix names no format, or a format that cannot hold these tensors.

    names: the tensors' names, if known
    types: types that may occur
    """
    if path.suffix not in _WRITERS:
        raise BadInput(
            f"{path}: refsd writes tensors to .safetensors, .npz or .npy; give the file one of these endings"
        )
    if path.suffix == ".safetensors":
        return
    if path.suffix == ".npy" and (names is None or len(names := list(names)) != 1):
        count = "several" if names is None else str(len(names))
        raise BadInput(f"{path}: .npy holds one tensor, and there are {count}; name a .safetensors or .npz file")
    lacking = sorted(set(types) - _NUMPY)
    if lacking:
        raise BadInput(f"{path}: NumPy's files have no {', '.join(lacking)}; name a .safetensors file")


def write_tensors(
    path: Path,
    specs: Mapping[str, Spec],
    tensors: Iterable[StoredTensor],
    metadata: Mapping[str, str] | None = None,
    advance: Advance = lambda n: None,
) -> None:
    """Write tensors, which must come in the order of `specs`; one at a time is in memory.

    metadata: written to safetensors only
    advance:  called after each tensor with its number of bytes

    Raises BadInput as `check_name` does, and if the file cannot be written.
    """
    check_name(path, specs, (spec.type for spec in specs.values()))
    _WRITERS[path.suffix](path, specs, tensors, metadata, advance)


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> None:
    """Write named arrays as `write_tensors` does."""
    tensors = {name: stored(np.asarray(array, order="C")) for name, array in arrays.items()}
    specs = {name: Spec(tensor.type, tensor.shape) for name, tensor in tensors.items()}
    write_tensors(path, specs, tensors.values(), metadata)


def _write_npz(path, specs, tensors, metadata, advance) -> None:
    del metadata
    with whole_file(path) as part, zipfile.ZipFile(part, "w") as archive:
        for (name, spec), tensor in zip(specs.items(), tensors, strict=True):
            if "\0" in name:
                raise BadInput(f"{path}: tensor {shown(name)}: npz has no NUL in a name; name a .safetensors file")
            entry = zipfile.ZipInfo(f"{name}.npy", _EPOCH)
            with archive.open(entry, "w", force_zip64=True) as file:
                _write_array(file, tensor)
            advance(spec.nbytes)


def _write_npy(path, specs, tensors, metadata, advance) -> None:
    del metadata
    with whole_file(path) as part, open(part, "wb") as file:
        for spec, tensor in zip(specs.values(), tensors, strict=True):
            _write_array(file, tensor)
            advance(spec.nbytes)


def _write_array(file: IO[bytes], tensor: StoredTensor) -> None:
    npy.write_array(file, np.asarray(tensor.data, order="C"), (1, 0), allow_pickle=False)


_WRITERS: dict[str, Callable[..., None]] = {
    ".safetensors": write_safetensors,
    ".npz": _write_npz,
    ".npy": _write_npy,
}
