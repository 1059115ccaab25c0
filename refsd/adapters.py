"""Adapters on a model's layers: applied as it runs, or merged into its weights."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from refsd.golden.arithmetic import Arithmetic
from refsd.golden.errors import BadInput
from refsd.golden.tensor import StoredTensor, stored
from refsd.kernels.adapters import Adapter, Conv2d, DoRA, Full, Layer, Linear, LoHa, LoKr, LoRA
from refsd.kernels.adapters.layer import convolve
from refsd.kernels.adapters.scales import alpha_over_rank, lokr_scale_sdcpp, rank_sdcpp
from refsd.weights.adapter_names import Target
from refsd.weights.adapters import AdapterFile, build_adapters, open_adapters
from refsd.weights.checkpoint import Checkpoint


class Applied(NamedTuple):
    """
    strength: 1 as trained
    kind:     the storage type of its factors, which decides how an engine multiplies
    target:   the layer, and its rows; None: all
    """

    adapter: Adapter
    strength: float
    kind: str = "f32"
    target: Target | None = None

    def rows(self, there: int) -> Any:
        return slice(None) if self.target is None else self.target.rows(there)


class Adapters:
    """
    layers:     key of a layer ("input_blocks.1.1.proj_in") -> what is applied to it, each to its original weight
    arithmetic: rounds inside and behind an adapter as it does in a layer
    """

    def __init__(self, layers: Mapping[str, list[Applied]], arithmetic: Arithmetic):
        self.layers = layers
        self.arithmetic = arithmetic

    def __contains__(self, key: str) -> bool:
        return key in self.layers

    def linear(self, key: str, x, y, weight, bias) -> np.ndarray:
        """The layer's output y [..., O], and what its adapters, if any, add to it. x: [..., I]"""

        def layer(kind, rows):
            some = None if bias is None else bias[rows]
            return Linear(weight[rows], some, self.arithmetic.activation(kind))

        return self._add(key, x, y, layer)

    def conv2d(self, key: str, x, y, weight, bias, stride, padding, dilation=1) -> np.ndarray:
        """The same of a convolution. padding: (top, bottom, left, right)"""

        def product(x, weight, stride, padding):
            conv = self.arithmetic.numerics.conv
            return convolve(
                self.arithmetic.round_as(x, conv), self.arithmetic.round_as(weight, conv), stride, padding
            )

        return self._add(key, x, y, lambda *_: Conv2d(weight, bias, stride, padding, dilation, product))

    def norm(self, key: str, weight, bias) -> tuple[np.ndarray, np.ndarray | None]:
        """A norm's weight and bias with their differences."""
        for adapter, strength, *_ in self.layers.get(key, ()):
            assert isinstance(adapter, Full)
            weight = weight + adapter.delta(weight, strength)
            more = adapter.bias_delta(bias, strength)
            bias = bias if more is None or bias is None else bias + more
        return weight, bias

    def _add(self, key: str, x, y, layer) -> np.ndarray:
        if key not in self.layers:
            return y
        dtype = self.arithmetic.numerics.compute_dtype
        x = np.ascontiguousarray(x, dtype)
        base = np.ascontiguousarray(y, dtype)
        out = base.copy()
        for i, applied in enumerate(self.layers[key]):
            adapter, rows = applied.adapter, applied.rows(y.shape[-1])
            on: Layer = layer(applied.kind, rows)
            if isinstance(adapter, DoRA) and adapter.measured is None:
                adapter = adapter.on(on.weight)
                self.layers[key][i] = applied._replace(adapter=adapter)
            if applied.target is None or applied.target.count is None:
                adapter.forward(x, base, on, out, applied.strength)
            else:  # of a linear layer
                some = np.ascontiguousarray(out[..., rows])
                adapter.forward(x, np.ascontiguousarray(base[..., rows]), on, some, applied.strength)
                out[..., rows] = some
        return self.arithmetic.store(out)


class Lora(NamedTuple):
    """A file and its strength, as a command line names it: FILE or FILE:STRENGTH."""

    path: Path
    strength: float


def parse(argument: str) -> Lora:
    """Raises BadInput where what stands behind the last colon is no number."""
    path, colon, strength = argument.rpartition(":")
    if not colon or not path or "/" in strength or "\\" in strength:
        return Lora(Path(argument), 1.0)
    try:
        value = float(strength)
    except ValueError:
        value = float("nan")
    if not np.isfinite(value):
        raise BadInput(f"--lora {argument}: expected FILE or FILE:STRENGTH, and a number for a strength")
    return Lora(Path(path), value)


def load(
    loras: Iterable[tuple[AdapterFile, float]],
    component: str,
    weights: Mapping[str, StoredTensor],
    arithmetic: Arithmetic,
) -> Adapters | None:
    """What the files hold for a component; None where that is nothing. Raises BadInput."""
    shapes = dict(_shapes(weights))
    layers: dict[str, list[Applied]] = {}
    for file, strength in loras:
        built = build_adapters(file, component, shapes, arithmetic.expand)
        for target, adapter in built.items():
            kind = file.weights.headers[next(iter(file.targets[target].values()))].type
            applied = Applied(_deviating(adapter, arithmetic), strength, kind, target)
            layers.setdefault(target.key, []).append(applied)
    return Adapters(layers, arithmetic) if layers else None


def open_loras(arguments: Iterable[str], checkpoint: Checkpoint) -> list[tuple[AdapterFile, float]]:
    """The files that a command line names. Raises BadInput."""
    return [(open_adapters(path, checkpoint), strength) for path, strength in map(parse, arguments)]


def _shapes(weights: Mapping[str, StoredTensor]) -> Iterator[tuple[str, tuple[int, ...]]]:
    known = getattr(weights, "shapes", None)
    for key in weights:
        yield key, known[key] if known else weights[key].shape


def _deviating(adapter: Adapter, arithmetic: Arithmetic) -> Adapter:
    """An engine's own rule for the scale, where one is declared."""
    columns = _columns_of_one_row(adapter)
    if columns is None or not arithmetic.parameter("adapter", "rank_one_is_columns", False):
        return adapter
    counted = rank_sdcpp(1, columns)
    if isinstance(adapter, LoKr):
        return adapter._replace(scale=lokr_scale_sdcpp(adapter.scale, counted))
    assert isinstance(adapter, LoRA | LoHa)
    return adapter._replace(scale=alpha_over_rank(adapter.scale, counted or 1))


def _columns_of_one_row(adapter: Adapter) -> int | None:
    """How wide the part that tells the rank is, where the rank is 1 (and the scale so alpha); else None."""
    if isinstance(adapter, LoRA) and len(adapter.down) == 1:
        return adapter.down.shape[1]
    if isinstance(adapter, LoHa) and len(adapter.w1_b) == 1:
        return adapter.w1_b.shape[1]
    if isinstance(adapter, LoKr) and adapter.rank == 1:
        factored = adapter.w1 if isinstance(adapter.w2, np.ndarray) else adapter.w2
        return factored[1].shape[1]
    return None


class Merged(Mapping[str, StoredTensor]):
    """Weights with the adapters in them, merged in the arithmetic's compute dtype when they are asked for.

    The comparison to an adapter that runs: the same up to rounding.
    """

    def __init__(self, weights: Mapping[str, StoredTensor], adapters: Adapters):
        self.weights = weights
        self.adapters = adapters

    def __getitem__(self, name: str) -> StoredTensor:
        tensor = self.weights[name]
        key, _, leaf = name.rpartition(".")
        if key not in self.adapters or leaf not in ("weight", "bias"):
            return tensor
        dtype = self.adapters.arithmetic.numerics.compute_dtype
        value = np.array(tensor.values(), dtype)
        total = value.copy()
        for applied in self.adapters.layers[key]:
            adapter, strength, rows = applied.adapter, applied.strength, applied.rows(len(value))
            if leaf == "weight":
                total[rows] += adapter.delta(value[rows], strength)
            elif (more := getattr(adapter, "bias_delta", lambda *_: None)(value[rows], strength)) is not None:
                total[rows] += more
        return stored(total)

    def __iter__(self) -> Iterator[str]:
        return iter(self.weights)

    def __len__(self) -> int:
        return len(self.weights)
