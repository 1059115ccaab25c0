"""Read those arrays of a GGUF file's metadata that opening the file does not keep, up to a size limit.

Opening a file only checks that every array lies within it and that its texts are UTF-8.
"""

import struct

import numpy as np

from refsd.files.gguf import NUMBERS, TEXT, Skipped
from refsd.files.stored import Weights
from refsd.numerics.errors import BadInput

MAX_ELEMENTS = 2**20
MAX_BYTES = 2**26  # of all texts of an array


def texts(weights: Weights, key: str) -> list[str]:
    """Read an array of texts. Raises BadInput for no such key, another type, more than 2^20 texts or 64 MiB."""
    array = _found(weights, key, "texts")
    if not isinstance(array, Skipped) or array.of != TEXT:
        raise _wrong(weights, key, "texts")
    at, left = array.at, MAX_BYTES
    read: list[str] = []
    for _ in range(array.length):
        (n,) = struct.unpack_from("<Q", weights.content, at)
        left -= n
        if left < 0:
            raise BadInput(f"{weights.path}: metadata {key} has more than {MAX_BYTES} bytes of text")
        read.append(weights.content[at + 8 : at + 8 + n].decode("utf-8"))
        at += 8 + n
    return read


def numbers(weights: Weights, key: str, kind: str) -> np.ndarray:
    """Read an array of numbers -> [n], a copy in the file's dtype; float64 or int64 if short (gguf.KEPT_ARRAY).

    kind: "f" floats, "iu" integers, as in numpy's dtype.kind
    Raises BadInput for no such key, another type, or more than 2^20 elements.
    """
    wanted = "floats" if kind == "f" else "integers"
    array = _found(weights, key, wanted)
    if isinstance(array, tuple) and not isinstance(array, Skipped):
        made = np.array(array, np.float64 if any(isinstance(v, float) for v in array) else None)
        made = made if len(array) else made.astype("f8" if kind == "f" else "i8")
    elif isinstance(array, Skipped) and array.of in NUMBERS:
        made = np.frombuffer(weights.content, NUMBERS[array.of], array.length, array.at).copy()
    else:
        raise _wrong(weights, key, wanted)
    if made.dtype.kind not in kind:
        raise _wrong(weights, key, wanted)
    return made


def _found(weights: Weights, key: str, wanted: str):
    if key not in weights.metadata:
        raise BadInput(f"{weights.path}: no {key} in the metadata, an array of {wanted} expected")
    array = weights.metadata[key]
    if isinstance(array, Skipped) and array.length > MAX_ELEMENTS:
        raise BadInput(
            f"{weights.path}: metadata {key} has {array.length} elements, at most {MAX_ELEMENTS} expected"
        )
    return array


def _wrong(weights: Weights, key: str, wanted: str) -> BadInput:
    return BadInput(f"{weights.path}: metadata {key}: an array of {wanted} expected, another type found")
