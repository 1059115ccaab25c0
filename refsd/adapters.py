"""Apply adapters to a model's layers while it runs, or merge them into its weights."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from refsd.kernels.adapters import Adapter, Conv2d, DoRA, Full, Layer
from refsd.kernels.adapters.layer import convolve
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import StoredTensor, stored


class Target(NamedTuple):
    """A layer of the original checkpoint, as "unet", "input_blocks.1.1.proj_in"; or some of its rows.

    If another layout splits a fused layer into q, k and v, each of them stands for a third of the layer's rows.

    first: first row
    count: number of rows, continuing at row 0 after the last row; None: all
    """

    component: str
    key: str
    first: int = 0
    count: int | None = None

    def rows(self, there: int) -> Any:
        """Return the rows as an array index, for a layer of `there` rows."""
        if self.count is None:
            return slice(None)
        end = self.first + self.count
        return slice(self.first, end) if end <= there else (self.first + np.arange(self.count)) % there


class Applied(NamedTuple):
    """An adapter with its strength and target.

    strength: 1 as trained
    kind:     storage type of its factors, which decides how an engine multiplies
    target:   the layer and its rows; None: all rows
    in_turn:  True if computed from the weight as the layer's previous adapters left it, False if from the model's
    """

    adapter: Adapter
    strength: float
    kind: str = "f32"
    target: Target | None = None
    in_turn: bool = False

    def rows(self, there: int) -> Any:
        return slice(None) if self.target is None else self.target.rows(there)


class Adapters:
    """The adapters of one component.

    layers:     key of a layer ("input_blocks.1.1.proj_in") -> its adapters, in order of application
    arithmetic: rounds inside and after an adapter as it does in a layer
    """

    def __init__(self, layers: Mapping[str, list[Applied]], arithmetic: Arithmetic):
        self.layers = layers
        self.arithmetic = arithmetic

    def __contains__(self, key: str) -> bool:
        return key in self.layers

    def linear(self, key: str, x, y, weight, bias) -> np.ndarray:
        """Return a linear layer's output y [..., O] with its adapters' contributions added. x: [..., I]"""

        def layer(kind, weight, rows):
            some = None if bias is None else bias[rows]
            return self.arithmetic.adapted(weight[rows], some, kind)

        return self._add(key, x, y, weight, layer)

    def conv2d(self, key: str, x, y, weight, bias, stride, padding, dilation=1) -> np.ndarray:
        """Return a convolution's output y with its adapters' contributions. padding: (top, bottom, left, right)"""

        def product(x, weight, stride, padding):
            conv = self.arithmetic.numerics.conv
            x = self.arithmetic.round_as(self.arithmetic.settled(x), conv)
            weight = self.arithmetic.round_as(weight, conv)
            return convolve(x, weight, stride, padding, self.arithmetic.matmul("conv"))

        def layer(kind, weight, rows):
            return Conv2d(weight, bias, stride, padding, dilation, product, self.arithmetic.settled)

        return self._add(key, x, y, weight, layer)

    def norm(self, key: str, weight, bias) -> tuple[np.ndarray, np.ndarray | None]:
        """Return a norm's weight and bias with the adapters' differences added."""
        for adapter, strength, *_ in self.layers.get(key, ()):
            assert isinstance(adapter, Full)
            weight = weight + adapter.delta(weight, strength)
            more = adapter.bias_delta(bias, strength)
            bias = bias if more is None or bias is None else bias + more
        return weight, bias

    def _add(self, key: str, x, y, weight, layer) -> np.ndarray:
        if key not in self.layers:
            return y
        dtype = self.arithmetic.numerics.compute_dtype
        x = np.ascontiguousarray(x, dtype)
        base = np.ascontiguousarray(y, dtype)
        out = base.copy()
        for i, applied in enumerate(self.layers[key]):
            adapter, rows = applied.adapter, applied.rows(y.shape[-1])
            if i and applied.in_turn:
                weight, base = _after(self.layers[key][i - 1], weight), out.copy()
            on: Layer = layer(applied.kind, weight, rows)
            if isinstance(adapter, DoRA) and adapter.measured is None:
                adapter = adapter.on(on.weight, applied.strength)
                self.layers[key][i] = applied._replace(adapter=adapter)
            if applied.target is None or applied.target.count is None:
                adapter.forward(x, base, on, out, applied.strength)
            else:  # of a linear layer
                some = np.ascontiguousarray(out[..., rows])
                adapter.forward(x, np.ascontiguousarray(base[..., rows]), on, some, applied.strength)
                out[..., rows] = some
            out = self.arithmetic.settled(out)
        return self.arithmetic.store(out)


def _after(applied: Applied, weight) -> np.ndarray:
    """Return the weight with an adapter's delta added, from which the next adapter is computed."""
    left, rows = weight.copy(), applied.rows(len(weight))
    left[rows] += applied.adapter.delta(weight[rows], applied.strength)
    return left


class Merged(Mapping[str, StoredTensor]):
    """Weights with adapters merged in, in the arithmetic's compute dtype, each on access.

    The results equal those of adapters applied while the model runs, up to rounding.
    """

    def __init__(self, weights: Mapping[str, StoredTensor], adapters: Adapters):
        self.weights = weights
        self.adapters = adapters
        for key, all_applied in adapters.layers.items():
            lacks = f"{key}.bias" not in weights
            if lacks and any(getattr(a.adapter, "bias", None) is not None for a in all_applied):
                raise BadInput(f"{key} has no bias, and its adapter one: it cannot be merged; apply it as it runs")

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
                met = total if applied.in_turn else value
                total[rows] += adapter.delta(met[rows], strength)
            elif (more := getattr(adapter, "bias_delta", lambda *_: None)(value[rows], strength)) is not None:
                total[rows] += more
        return stored(total)

    def __iter__(self) -> Iterator[str]:
        return iter(self.weights)

    def __len__(self) -> int:
        return len(self.weights)
