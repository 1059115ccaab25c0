"""Write weights to safetensors and GGUF, a tensor at a time. The file appears only when it is complete."""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from refsd.files import safetensors
from refsd.files.gguf import MAX_DIMS
from refsd.files.gguf_types import TYPES
from refsd.golden.output_file import whole_file
from refsd.kernels.quant import BLOCK_TYPES
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import SCALAR_TYPES, StoredTensor

SAFETENSORS_NAMES = {ours: theirs for theirs, (ours, _) in safetensors.TYPES.items()}
GGUF_NUMBERS = {name: number for number, (name, _, _) in TYPES.items()}

Advance = Callable[[int], None]


class Spec(NamedTuple):
    """Type (as StoredTensor.type) and shape (in torch's order) of a tensor that will be written."""

    type: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        elements = math.prod(self.shape)
        if self.type in SCALAR_TYPES:
            return elements * SCALAR_TYPES[self.type].itemsize
        return elements // BLOCK_TYPES[self.type].block * BLOCK_TYPES[self.type].bytes


def write_safetensors(
    path: Path,
    specs: Mapping[str, Spec],
    tensors: Iterable[StoredTensor],
    metadata: Mapping[str, str] | None = None,
    advance: Advance = lambda n: None,
) -> None:
    """Write a safetensors file from tensors that come in the order of `specs`; one at a time is in memory.

    advance: called after each tensor with its number of bytes
    Raises BadInput for a type that the format lacks, or if the file cannot be written.
    """
    header: dict[str, dict] = {"__metadata__": {"format": "pt", **(metadata or {})}}
    end = 0
    for name, spec in specs.items():
        if spec.type not in SAFETENSORS_NAMES:
            raise BadInput(f"{path}: safetensors has no {spec.type}; write a .gguf file")
        begin, end = end, end + spec.nbytes
        kind = SAFETENSORS_NAMES[spec.type]
        header[name] = {"dtype": kind, "shape": list(spec.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with whole_file(path) as part, open(part, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, data in _checked(specs, tensors):
            file.write(data)
            advance(specs[name].nbytes)


def write_gguf(
    path: Path,
    specs: Mapping[str, Spec],
    tensors: Iterable[StoredTensor],
    architecture: str,
    advance: Advance = lambda n: None,
) -> None:
    """Write a GGUF file, with arguments as write_safetensors; gguf-py reverses the shapes.

    Raises BadInput for a type that gguf-py does not write, and for a tensor of more than four dimensions.
    """
    from gguf import GGMLQuantizationType, GGUFWriter

    with whole_file(path) as part:
        writer = GGUFWriter(part, architecture)
        for name, spec in specs.items():
            if GGUF_NUMBERS.get(spec.type) not in set(GGMLQuantizationType):
                raise BadInput(f"{path}: gguf-py cannot write {spec.type}; write a .safetensors file")
            if len(spec.shape) > MAX_DIMS:
                raise BadInput(
                    f'{path}: "{name}" has {len(spec.shape)} dimensions, GGUF at most {MAX_DIMS}; '
                    "write a .safetensors file"
                )
            kind = GGMLQuantizationType(GGUF_NUMBERS[spec.type])
            if spec.type in BLOCK_TYPES:
                *rows, last = spec.shape
                width = Spec(spec.type, (last,)).nbytes
                writer.add_tensor_info(name, (*rows, width), np.dtype(np.uint8), spec.nbytes, kind)
            else:
                writer.add_tensor_info(name, spec.shape, SCALAR_TYPES[spec.type], spec.nbytes, kind)
        try:
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
            for name, data in _checked(specs, tensors):
                writer.write_tensor_data(np.frombuffer(data, np.uint8))
                advance(specs[name].nbytes)
        finally:
            writer.close()


def _checked(specs: Mapping[str, Spec], tensors: Iterable[StoredTensor]) -> Iterator[tuple[str, memoryview]]:
    for (name, spec), tensor in zip(specs.items(), tensors, strict=True):
        assert (tensor.type, tensor.shape) == spec, f"{name}: {tensor.type} {tensor.shape} for {spec}"
        assert tensor.scaling is None, f"{name}: its scale would be lost"
        yield name, np.ascontiguousarray(tensor.data).reshape(-1).view(np.uint8).data
