"""Exchange messages with a worker process over a pipe: a JSON header, then the tensors' bytes."""

import json
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np

from refsd.numerics.tensor import SCALAR_TYPES, StoredTensor


def write_message(stream: BinaryIO, header: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> None:
    """Write one message: the JSON text's length as 8 little-endian bytes, the text, then each tensor's bytes."""
    chunks = {name: np.ascontiguousarray(tensor.data) for name, tensor in tensors.items()}
    listed = [
        {"name": name, "type": tensor.type, "shape": list(tensor.shape), "bytes": chunks[name].nbytes}
        for name, tensor in tensors.items()
    ]
    text = json.dumps({"header": dict(header), "tensors": listed}).encode()
    stream.write(len(text).to_bytes(8, "little") + text)
    for chunk in chunks.values():
        stream.write(chunk.tobytes())
    stream.flush()


def read_message(stream: BinaryIO) -> tuple[dict[str, Any], dict[str, StoredTensor]]:
    """Read one message of write_message. Raises EOFError if the stream ends."""
    text = json.loads(_exactly(stream, int.from_bytes(_exactly(stream, 8), "little")))
    tensors = {}
    for entry in text["tensors"]:
        data = np.frombuffer(_exactly(stream, entry["bytes"]), SCALAR_TYPES.get(entry["type"], np.uint8))
        shape = tuple(entry["shape"])
        if entry["type"] in SCALAR_TYPES:
            data = data.reshape(shape)
        tensors[entry["name"]] = StoredTensor(entry["type"], shape, data)
    return text["header"], tensors


def _exactly(stream: BinaryIO, size: int) -> bytes:
    data = stream.read(size)
    if len(data) != size:
        raise EOFError
    return data
