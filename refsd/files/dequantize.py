"""Expand a file of quantized blocks to float tensors."""

from pathlib import Path

import numpy as np

from refsd.files.formats import open_weights
from refsd.files.stored import enough_memory, shown
from refsd.files.tensor_files import check_name, write_tensors
from refsd.files.writers import Advance, Spec
from refsd.kernels.quant import BLOCK_TYPES
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import SCALAR_TYPES, StoredTensor, stored


class Expansion:
    """Expand the blocks of a GGUF or any other file that refsd reads, with one tensor in memory at a time.

    type: type that replaces blocks, 8-bit floats and scaled int8: "f32" (exact) or "f16"; other types are kept

    Raises BadInput for a tensor that refsd cannot read.
    """

    def __init__(self, path: Path, type: str = "f32"):
        self.path = path
        self.type = type
        self._weights = open_weights(path)
        self.specs = {name: self._spec(self._weights[name]) for name in self._weights}
        self.nbytes = sum(spec.nbytes for spec in self.specs.values())

    def _spec(self, tensor: StoredTensor) -> Spec:
        return Spec(self.type if _is_packed(tensor) else tensor.type, tensor.shape)

    def check_name(self, output: Path) -> None:
        """Raise BadInput if the name's ending means no format, or a format that cannot hold these tensors."""
        check_name(output, self.specs, (spec.type for spec in self.specs.values()))

    def write(self, output: Path, advance: Advance = lambda n: None) -> None:
        """Write a .safetensors, .npz or .npy file.

        Raises BadInput for another ending, for a value that overflows f16, or if the file cannot be written.
        """
        write_tensors(output, self.specs, map(self._expanded, self._weights), advance=advance)

    def _expanded(self, name: str) -> StoredTensor:
        tensor = self._weights[name]
        if not _is_packed(tensor):
            return tensor
        try:
            with np.errstate(over="raise"), enough_memory(self.path, name):
                return stored(tensor.values().astype(SCALAR_TYPES[self.type], copy=False))
        except FloatingPointError:
            raise BadInput(
                f"{self.path}: tensor {shown(name)}: values beyond 65504 do not fit f16; write --type f32"
            ) from None


def _is_packed(tensor: StoredTensor) -> bool:
    return tensor.type in BLOCK_TYPES or tensor.type.startswith("f8_") or tensor.scaling is not None
