"""What a storage type costs: the error of a component's output when its matrices are quantized, layer by layer."""

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from refsd.components import forward
from refsd.kernels.quant import BLOCK_TYPES
from refsd.kernels.quant.block_type import BlockType, Importance
from refsd.module import Module
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import StoredTensor
from refsd.weights.recipes import storage_type

# Layer -> mean square of each of its inputs' columns, over all rows of a run.
Matrix = Mapping[str, np.ndarray]


class Quality(NamedTuple):
    """The error of one type.

    importance: whether the blocks were chosen with an importance matrix
    error:      relative L2 error of the output
    largest:    largest absolute error of the output
    bits:       bits per element of the quantized matrices
    layers:     layer -> relative L2 error of its own product, on the model's own inputs; the largest first
    """

    type: str
    importance: bool
    error: float
    largest: float
    bits: float
    layers: dict[str, float]


class Quantized(Mapping[str, StoredTensor]):
    """Weights whose matrices are quantized on access; embeddings, first and last layers stay as they are.

    The choice of matrices is that of recipe weights, which is stable-diffusion.cpp's.
    """

    def __init__(self, weights: Mapping[str, StoredTensor], type: BlockType, importance: Matrix):
        self.weights, self.type, self.importance = weights, type, importance

    def __getitem__(self, name: str) -> StoredTensor:
        tensor = self.weights[name]
        if storage_type(name, tensor.shape, self.type.name) != self.type.name:
            return tensor
        blocks = np.asarray(tensor.values(), np.float32).reshape(-1, self.type.block)
        columns = self.importance.get(name.removesuffix(".weight"))
        if self.type.importance is Importance.UNUSED:
            data = self.type.quantize(blocks)
        else:
            if columns is None and self.type.importance is Importance.REQUIRED:
                columns = np.ones(tensor.shape[-1], np.float32)
            data = self.type.quantize(blocks, columns)
        return StoredTensor(self.type.name, tensor.shape, data.reshape(-1))

    def __iter__(self) -> Iterator[str]:
        return iter(self.weights)

    def __len__(self) -> int:
        return len(self.weights)

    def __contains__(self, name: object) -> bool:
        return name in self.weights


def measure(
    part: str, m: Module, inputs: Mapping[str, np.ndarray], params: Mapping[str, Any], types: list[str]
) -> Iterator[Quality]:
    """Yield the quality of each type, without and then with an importance matrix where the type takes one.

    The matrix is collected from the same inputs. Raises BadInput for a type that is no block type.
    """
    unknown = [type for type in types if type not in BLOCK_TYPES]
    if unknown:
        raise BadInput(f"--types {', '.join(unknown)}: expected some of {', '.join(BLOCK_TYPES)}")
    seen: dict[str, list[np.ndarray]] = {}
    (truth,) = _outputs(part, _watched(m, seen), inputs, params)
    importance = {name: squares / rows for name, (squares, rows) in seen.items()}
    for name in types:
        block = BLOCK_TYPES[name]
        for matrix in [{}] if block.importance is Importance.UNUSED else [{}, importance]:
            weights = Quantized(m.weights, block, matrix)
            layers: dict[str, float] = {}
            (y,) = _outputs(part, _compared(m, weights, layers), inputs, params)
            worst = dict(sorted(layers.items(), key=lambda item: -item[1]))
            difference = y - truth
            error = float(np.linalg.norm(difference.ravel()) / np.linalg.norm(truth.ravel()))
            bits = 8 * block.bytes / block.block
            yield Quality(name, bool(matrix), error, float(np.abs(difference).max()), bits, worst)


def _outputs(part: str, m: Module, inputs: Mapping[str, np.ndarray], params: Mapping[str, Any]) -> list[np.ndarray]:
    return [np.asarray(y, np.float64) for y in list(forward(part, m, inputs, params).values())[:1]]


def _watched(m: Module, seen: dict[str, list[np.ndarray]]) -> Module:
    """Return the module that adds up the squares of each linear layer's inputs."""

    class Watched(Module):
        def linear(self, name, x):
            rows = np.asarray(x, np.float64).reshape(-1, x.shape[-1])
            sums = seen.setdefault(self.prefix + name, [np.zeros(rows.shape[1]), np.zeros(())])
            sums[0] = sums[0] + np.einsum("ij,ij->j", rows, rows)
            sums[1] = sums[1] + len(rows)
            return super().linear(name, x)

    return Watched(m.weights, m.arithmetic, m.prefix, adapters=m.adapters)


def _compared(m: Module, weights: Quantized, layers: dict[str, float]) -> Module:
    """Return the module with quantized weights, which notes each quantized layer's own error."""

    class Compared(Module):
        def linear(self, name, x):
            y = super().linear(name, x)
            key = f"{self.prefix}{name}.weight"
            if self._stored(f"{name}.weight").type == weights.type.name:
                exact, ours = (np.asarray(w[key].values(), np.float32) for w in (weights.weights, weights))
                rows = np.asarray(x, np.float32).reshape(-1, x.shape[-1])
                product = rows @ exact.T
                power = float(np.linalg.norm(product))
                error = float(np.linalg.norm(rows @ ours.T - product)) / power if power else 0.0
                layers[key.removesuffix(".weight")] = max(error, layers.get(key.removesuffix(".weight"), 0.0))
            return y

    return Compared(weights, m.arithmetic, m.prefix, adapters=m.adapters)


def decibels(error: float) -> float:
    """Return the ratio of signal to error in decibels. error: relative L2"""
    return -20 * math.log10(error) if error else math.inf
