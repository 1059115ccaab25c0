"""A Module whose weights are a graph's initializers, and taps that name its values."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from refsd.module import Module, Taps
from refsd.onnx.builder import Value
from refsd.onnx.trace.arithmetic import TracingArithmetic
from refsd.onnx.trace.array import Graph, Traced, traced
from refsd.onnx.weights import weight as initializer


class TracingModule(Module):
    """Module over a graph: a weight becomes an initializer under its key, once."""

    arithmetic: TracingArithmetic

    def weight(self, name: str, called: str = ""):
        """called: the initializer, if not as its key"""
        stored, graph = self._stored(name), self.arithmetic.graph
        key = called or self.prefix + name

        def expand() -> "_Kept":
            value = graph.cast(initializer(graph, key, stored), graph.dtype)
            return _Kept(Traced(graph, value, None if len(stored.shape) > 1 else np.asarray(stored.values())))

        return self.cache.get(key, expand).array

    def _borrowed(self, name: str):
        return self.weight(name)

    def _tap(self, name: str, y: Any) -> Any:
        return super()._tap(name, y)

    def rms_norm(self, name: str | None, x, eps=1e-6, plus=0.0):
        """The result has the weight's key as its tap, so the initializer is called otherwise."""
        if name is None:
            return super().rms_norm(None, x, eps)
        weight = self.weight(name, f"/{self.prefix}{name}")
        weight = weight + plus if plus else weight
        return self._tap(name, self.arithmetic.rms_norm(x, weight, eps))

    rms_norm_apart = rms_norm

    def embedding(self, name: str, ids):
        return self._tap(name, self.arithmetic.embedding(ids, self.weight(f"{name}.weight")))


class _Kept:
    """A weight as a cache of weights keeps it. nbytes: none, the graph has them"""

    nbytes = 0

    def __init__(self, array: Traced):
        self.array = array


class TapNames(Taps):
    """Taps that give each value of a graph the name under which the reference records it.

    forced: tap -> the tensor that what follows is computed from, as an input of the graph

    values: tap -> value
    feeds:  input of the graph -> forced tensor
    """

    def __init__(self, graph: Graph, forced: Mapping[str, np.ndarray]):
        super().__init__("", ops=True)
        self._graph, self._forced = graph, forced
        self.values: dict[str, Value] = {}
        self.feeds: dict[str, np.ndarray] = {}

    def record(self, name: str, value):
        super().record(name, np.zeros(0))
        tap, value = self.recorded[-1], traced(self._graph, value)
        self.values[tap] = self._graph.named(value.value, tap)
        if tap not in self._forced:
            return Traced(self._graph, self.values[tap], value.known)
        given = self._graph.input(f"/forced/{tap}", value.dtype, value.shape)
        self.feeds[given.name] = self._forced[tap].astype(value.dtype)
        return Traced(self._graph, given)
