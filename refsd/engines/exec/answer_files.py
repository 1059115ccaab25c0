"""Read the safetensors files that a program writes, and say in words what is wrong with one that cannot be read."""

import json

import numpy as np
import safetensors

from refsd.golden.engine import EngineFailure
from refsd.golden.wording import did_you_mean
from refsd.numerics.printable import printable
from refsd.numerics.tensor import SCALAR_TYPES

# type name in a safetensors header -> refsd's storage type
_DTYPES = {
    "F64": "f64",
    "F32": "f32",
    "F16": "f16",
    "BF16": "bf16",
    "I64": "i64",
    "I32": "i32",
    "I16": "i16",
    "I8": "i8",
    "U8": "u8",
    "BOOL": "bool",
}
_LENGTH = 8  # bytes of the length of the header, with which a file begins


def read_tensors(data: bytes, file: str) -> dict[str, np.ndarray]:
    """Read a safetensors file. file: its name, for errors. Raises EngineFailure."""
    try:
        found = safetensors.deserialize(data)
    except safetensors.SafetensorError as error:
        raise EngineFailure(f"{file} is no safetensors file{_backwards(data)}: {_reason(data, error)}") from None
    _check_names(data, file)
    outputs = {}
    for name, entry in found:
        at = f"{file}: {printable(name, 100)}"
        if entry["dtype"] not in _DTYPES:
            raise EngineFailure(f"{at} has type {entry['dtype']}, expected F32 or the like")
        flat = np.frombuffer(bytes(entry["data"]), SCALAR_TYPES[_DTYPES[entry["dtype"]]])
        try:
            outputs[name] = flat.reshape(entry["shape"])
        except (ValueError, OverflowError):
            raise EngineFailure(f"{at} has a shape that NumPy cannot hold: {entry['shape']}") from None
    return outputs


def _backwards(data: bytes) -> str:
    """Say that a header's length has its bytes in the other order, if it has."""
    little, big = (int.from_bytes(data[:_LENGTH], order) for order in ("little", "big"))
    if 0 < big <= len(data) - _LENGTH < little:
        return " (its first 8 bytes, the header's length, are big-endian)"
    return ""


def _reason(data: bytes, error: safetensors.SafetensorError) -> str:
    """Say why a file cannot be read; what the package says of it if no reason is known here."""
    if len(data) < _LENGTH:
        return f"it has {len(data)} bytes, fewer than the length of its header"
    length = int.from_bytes(data[:_LENGTH], "little")
    if length > len(data) - _LENGTH:
        return (
            "its first 8 bytes are no length of a header: it is plain numbers, JSON or another format, or cut off"
        )
    try:
        entries = json.loads(data[_LENGTH : _LENGTH + length])
        types = {name: entry["dtype"] for name, entry in entries.items() if name != "__metadata__"}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return str(error)
    for name, dtype in types.items():
        if f"unknown variant `{dtype}`" in str(error):
            meant = did_you_mean(dtype, _DTYPES) if dtype.isalnum() else ""  # "<f4" is not like F64
            expected = meant or f", expected one of {', '.join(_DTYPES)}"
            return f"{printable(name, 100)} has the unknown dtype {printable(repr(dtype), 100)}{expected}"
    return str(error)


def _check_names(data: bytes, file: str) -> None:
    """Raise EngineFailure if a header names a tensor twice; the safetensors package would take the last."""
    header = data[_LENGTH : _LENGTH + int.from_bytes(data[:_LENGTH], "little")]
    names = [name for name, _ in json.loads(header, object_pairs_hook=list)]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise EngineFailure(f"{file}: the header names {printable(twice, 100)} twice")
