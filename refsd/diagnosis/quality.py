"""What a storage type costs: the error of a component's output and the drift of a sampling run, layer by layer."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from refsd.adapters import Adapters, Merged
from refsd.components import forward
from refsd.diagnosis.sampling_run import Run
from refsd.files.storage import Storage, storage_of
from refsd.files.stored import NamedTensors
from refsd.golden.wording import counted
from refsd.kernels.quant.block_type import Importance
from refsd.module import Module
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.tensor import StoredTensor
from refsd.weights.recipes import is_matrix

# Layer -> mean square of each of its inputs' columns, over all rows of a run.
Matrix = Mapping[str, np.ndarray]


class Quality(NamedTuple):
    """The error of one type.

    importance: whether the blocks were chosen with an importance matrix
    adapter:    "merged" into the weights before they were quantized, "beside" them, or "" if there is none
    error:      relative L2 error of the output
    largest:    largest absolute error of the output
    bits:       bits per element of the quantized matrices
    layers:     layer -> relative L2 error of its own product, on the model's own inputs; the largest first
    drift:      relative L2 distance of the latent from the exact run's, after each step; empty without a run
    effects:    layer -> the share of its merged adapter that is left once quantized, the least first: how far the
                quantized weight moved along the adapter's change. A change far below a block's steps is lost
    lost:       layer -> the share of its weights that became zeros in whole groups of 16, where that is more than
                1 %; the largest first. The scale of such a group is below the smallest that the type holds
    """

    type: str
    importance: bool
    adapter: str
    error: float
    largest: float
    bits: float
    layers: dict[str, float]
    drift: tuple[float, ...] = ()
    effects: Mapping[str, float] = {}
    lost: Mapping[str, float] = {}


class Quantized(NamedTensors):
    """Weights whose matrices are quantized on first access; embeddings, first and last layers stay as they are.

    The choice of matrices is that of recipe weights, which is stable-diffusion.cpp's.
    budget: bytes of quantized matrices to keep; the others are quantized again at each access
    """

    def __init__(self, weights: Mapping[str, StoredTensor], storage: Storage, importance: Matrix, budget: int = 0):
        self.weights, self.storage, self.importance, self.budget = weights, storage, importance, budget
        self.names = weights
        self._kept: dict[str, StoredTensor] = {}

    def __getitem__(self, name: str) -> StoredTensor:
        if name in self._kept:
            return self._kept[name]
        tensor = self.weights[name]
        if not self.has(name):
            return tensor
        values = np.asarray(tensor.values(), np.float32)
        quantized = self.storage.keep(values, self.importance.get(name.removesuffix(".weight")))
        if quantized.data.nbytes <= self.budget:
            self.budget -= quantized.data.nbytes
            self._kept[name] = quantized
        return quantized

    def has(self, name: str) -> bool:
        """True for a matrix that is quantized."""
        return name in self.weights and is_matrix(name, self.weights[name].shape, self.storage.unit)


def measure(
    part: str,
    m: Module,
    inputs: Mapping[str, np.ndarray],
    params: Mapping[str, Any],
    storages: Sequence[Storage],
    run: Run | None = None,
    budget: int = 0,
) -> Iterator[Quality]:
    """Yield the quality of each type, without and then with an importance matrix where the type takes one.

    A module with adapters gives two rows for each: the adapters merged before quantizing, and left beside.
    The truth is the module as it is; the matrix is collected from the same inputs.

    run:    a sampling run to repeat with each type
    budget: bytes of quantized matrices to keep in memory
    """
    seen: dict[str, list[np.ndarray]] = {}
    truth = _output(part, _watched(m, seen), inputs, params)
    path = run.latents(m) if run is not None else []
    importance = {name: squares / rows for name, (squares, rows) in seen.items()}
    for storage in storages:
        for matrix in [{}] if storage.importance is Importance.UNUSED else [{}, importance]:
            for adapter, exact, adapters in _ways(m):
                weights = Quantized(exact, storage, matrix, budget)
                layers: dict[str, float] = {}
                lost: dict[str, float] = {}
                arithmetic = _rounding(m.arithmetic, storage)
                y = _output(part, _compared(m, weights, arithmetic, adapters, layers, lost), inputs, params)
                drift: tuple[float, ...] = ()
                if run is not None:
                    ours = run.latents(Module(weights, arithmetic, m.prefix, adapters=adapters))
                    drift = tuple(relative(x, exact) for x, exact in zip(ours, path, strict=True))
                yield Quality(
                    storage.name,
                    bool(matrix),
                    adapter,
                    relative(y, truth),
                    float(np.abs(y - truth).max()),
                    storage.bits,
                    dict(sorted(layers.items(), key=lambda item: -item[1])),
                    drift,
                    dict(sorted(_effects(weights).items(), key=lambda item: item[1])),
                    dict(sorted(lost.items(), key=lambda item: -item[1])),
                )


def _ways(m: Module) -> Iterator[tuple[str, Mapping[str, StoredTensor], Adapters]]:
    """Yield where the adapters go: (Quality.adapter, the weights to quantize, the adapters that stay beside)."""
    if not m.adapters.layers:
        yield "", m.weights, m.adapters
        return
    yield "merged", Merged(m.weights, m.adapters), Adapters({}, m.arithmetic)
    yield "beside", m.weights, m.adapters


def _effects(weights: Quantized) -> dict[str, float]:
    merged = weights.weights
    if not isinstance(merged, Merged):
        return {}
    effects, plain = {}, Quantized(merged.weights, weights.storage, weights.importance)
    for layer in merged.adapters.layers:
        name = f"{layer}.weight"
        if weights.has(name):
            before, after, base = (w[name].values() for w in (merged.weights, merged, plain))
            change = (after - before).astype(np.float64).ravel()
            moved = (weights[name].values() - base).ravel()
            effects[layer] = float(moved @ change) / (float(change @ change) or 1.0)
    return effects


def relative(y: np.ndarray, truth: np.ndarray) -> float:
    """Return the relative L2 error."""
    exact = np.asarray(truth, np.float64)
    return float(np.linalg.norm((y - exact).ravel()) / (np.linalg.norm(exact.ravel()) or 1.0))


def _output(part: str, m: Module, inputs: Mapping[str, np.ndarray], params: Mapping[str, Any]) -> np.ndarray:
    return np.asarray(next(iter(forward(part, m, inputs, params).values())), np.float64)


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


def _rounding(arithmetic: Arithmetic, storage: Storage) -> Arithmetic:
    """Return the arithmetic whose products with such weights round their activations."""
    if storage.activations is None:
        return arithmetic
    activations = {**arithmetic.numerics.activations, storage.type: storage.activations}
    return Arithmetic(replace(arithmetic.numerics, activations=activations))


def _compared(
    m: Module,
    weights: Quantized,
    arithmetic: Arithmetic,
    adapters: Adapters,
    layers: dict[str, float],
    lost: dict[str, float],
) -> Module:
    """Return the module with quantized weights, which notes each quantized layer's own error and lost weights."""

    class Compared(Module):
        def linear(self, name, x):
            y = super().linear(name, x)
            key = f"{self.prefix}{name}.weight"
            if weights.has(key):
                exact, ours = (np.asarray(w[key].values(), np.float32) for w in (weights.weights, weights))
                rows = np.asarray(x, np.float32).reshape(-1, x.shape[-1])
                product = rows @ exact.T
                power = float(np.linalg.norm(product))
                entering = self.arithmetic.activation(weights[key].product_type)(rows)
                error = float(np.linalg.norm(entering @ ours.T - product)) / power if power else 0.0
                layer = key.removesuffix(".weight")
                layers[layer] = max(error, layers.get(layer, 0.0))
                if (share := _lost(exact, ours)) > 0.01:
                    lost[layer] = share
            return y

    return Compared(weights, arithmetic, m.prefix, adapters=adapters)


def _lost(exact: np.ndarray, ours: np.ndarray) -> float:
    """Return the share of weights that became zeros in groups of 16, the fewest that have a scale of their own."""
    left = np.logical_or.reduceat(ours.ravel() != 0, np.arange(0, ours.size, 16))
    return float((~np.repeat(left, 16)[: ours.size] & (exact.ravel() != 0)).mean())


def remarks(rows: Sequence[Quality]) -> list[str]:
    """Return what the table does not show: weights that a type lost, and types that cover fewer layers."""
    found, fullest = [], max(rows, key=lambda row: len(row.layers))
    first = [row for i, row in enumerate(rows) if row.type not in (other.type for other in rows[:i])]
    for row in first:
        if row.lost:
            (layer, share), others = next(iter(row.lost.items())), len(row.lost) - 1
            more = f", and more than 1 % of {counted(others, 'other layer')}" if others else ""
            found.append(f"{row.type}: {100 * share:.0f} % of the weights of {layer} became zeros{more}")
        if len(row.layers) < len(fullest.layers):
            found.append(
                f"{row.type} covers {len(row.layers)} of the {len(fullest.layers)} layers of {fullest.type}: its "
                f"rows are multiples of {storage_of(row.type).unit}. Their errors and drifts do not compare"
            )
    return found


def decibels(error: float) -> float:
    """Return the ratio of signal to error in decibels. error: relative L2"""
    return -20 * math.log10(error) if error else math.inf
