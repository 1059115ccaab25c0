"""What refsd reads in a file of weights, as values that can be compared."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from refsd.files.stored import Weights
from refsd.kernels.quant import BLOCK_TYPES
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import SCALAR_TYPES
from refsd.weights import open_checkpoint
from refsd.weights.checkpoint import problems, survey
from refsd.weights.describe import describe, list_tensors


def tensors_read(weights: Weights) -> dict[str, list]:
    """name -> type, shape, bytes; the bytes in hexadecimal"""
    found = {}
    for name, header in weights.headers.items():
        if readable(header.type) or name in weights.scalings:
            data = np.ascontiguousarray(weights[name].data).tobytes()
        else:  # a type that the format knows and refsd does not read: there, and not to be had
            data = raw(weights.path, header.offset, header.nbytes)
        found[name] = [header.type, list(header.shape), data.hex()]
    return found


def values_read(weights: Weights, names: Iterable[str]) -> dict[str, str]:
    """name -> a hash of the values after scales, in float64"""
    return {
        name: hashlib.sha256(weights[name].values().astype("<f8").tobytes()).hexdigest() for name in sorted(names)
    }


def raw(path: Path, offset: int, nbytes: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(nbytes)


def readable(kind: str) -> bool:
    return kind in SCALAR_TYPES or kind in BLOCK_TYPES


def checkpoint_read(path: Path) -> dict:
    """Everything that `refsd info` says, and whether the model opens."""
    checkpoint = survey(path)
    for component in checkpoint.components.values():
        problems(component)
    try:
        open_checkpoint(path)
        opens = "opens"
    except BadInput as error:
        opens = str(error)
    found = describe(checkpoint)
    found |= {"path": "", "tensor_list": list_tensors(checkpoint), "opens": opens}
    # The same folder elsewhere is the same.
    return json.loads(json.dumps(found).replace(str(path), ""))
