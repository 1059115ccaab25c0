"""Round values and weights as one Numerics says, before, between and after operations."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from refsd.kernels.adapters.layer import as_it_is
from refsd.kernels.quant import BLOCK_TYPES, bf16, f16
from refsd.kernels.scratch import scratch
from refsd.numerics.deviations import Deviation
from refsd.numerics.profiles import Numerics
from refsd.numerics.quantization import Quantization, rounded
from refsd.numerics.rational_logistic import as_a_quotient
from refsd.numerics.shader_functions import in_a_shader
from refsd.numerics.tensor import SCALAR_TYPES, StoredTensor
from refsd.numerics.tf32 import to_tf32

_WIDEN = {"f16": f16.dequantize, "bf16": bf16.dequantize}  # to float32; uses all cores, NumPy only one


class Rounding:
    """The roundings and the deviations of an engine.

    numerics:   what is rounded, and to which type
    deviations: parameters that replace the caller's
    """

    def __init__(self, numerics: Numerics, deviations: Iterable[Deviation] = ()):
        self.numerics = numerics
        self.deviations = tuple(deviations)
        self._forced: dict[str, dict[str, Any]] = {}
        for d in self.deviations:
            self._forced.setdefault(d.op, {}).update(d.sets)

    def parameter(self, op: str, name: str, value):
        """Return a parameter's value, or the value that a deviation sets instead."""
        return self._forced.get(op, {}).get(name, value)

    def _widen(self, x) -> np.ndarray:
        return np.ascontiguousarray(x, self.numerics.compute_dtype)

    def _round(self, y) -> np.ndarray:
        return y.astype(self.numerics.storage_dtype, copy=False)

    def store(self, x) -> np.ndarray:
        """Round an input to the storage dtype."""
        return np.asarray(x).astype(self.numerics.storage_dtype, copy=False)

    def expand(self, weight: StoredTensor) -> np.ndarray:
        """Dequantize a weight for the operations below: rounded to storage, in the compute dtype.

        The array is writable, because Numba would compile again for a read-only one.
        """
        widen = _WIDEN.get(weight.type)
        if widen is not None and self.numerics.storage_dtype == np.float32:
            values = widen(weight.data.reshape(-1).view(np.uint16)).reshape(weight.shape)
        else:
            values = self._round(weight.values())
        return np.require(values, self.numerics.compute_dtype, ["C", "W"])

    def borrow(self, weight: StoredTensor) -> np.ndarray:
        """Expand a weight for a single product; this thread's next call of `borrow` may overwrite the memory."""
        if not self.numerics.storage_dtype == self.numerics.compute_dtype == np.float32:
            return self.expand(weight)
        if weight.type in _WIDEN:
            y = scratch("a weight", weight.shape, np.float32)
            _WIDEN[weight.type](weight.data.reshape(-1).view(np.uint16), y.reshape(-1))
            return y
        if weight.type in BLOCK_TYPES:
            block_type = BLOCK_TYPES[weight.type]
            y = scratch("a weight", weight.shape, np.float32)
            block_type.dequantize(weight.data.reshape(-1, block_type.bytes), y.reshape(-1, block_type.block))
            return y
        return self.expand(weight)

    def round_as(self, x: np.ndarray, type_name: str | Quantization | None) -> np.ndarray:
        """Round x to a storage type, or to few bits under scales, and back; None returns x."""
        if type_name is None:
            return x
        if isinstance(type_name, Quantization):
            return rounded(x, type_name, self.settled)
        if type_name == "tf32":
            return to_tf32(x)
        if type_name in SCALAR_TYPES:
            return x.astype(SCALAR_TYPES[type_name]).astype(x.dtype)
        block_type = BLOCK_TYPES[type_name]
        pack = block_type.quantize_activation
        assert pack is not None, f"no numerics rounds activations to {type_name}"
        rows = np.ascontiguousarray(x, np.float32).reshape(-1, block_type.block)
        return block_type.dequantize(pack(rows)).astype(x.dtype).reshape(x.shape)

    @property
    def _fuses(self) -> bool:
        """True if nothing is rounded between two operations, so that a fused kernel gives the same result."""
        return self.numerics.storage == self.numerics.compute

    def apply(self, kernel: Callable[..., np.ndarray], *arrays, **params):
        """Call a kernel that only needs its arrays widened and its result rounded."""
        function = in_a_shader(kernel) if self.numerics.shader else kernel
        function = as_a_quotient(function) if self.numerics.logistic else function
        return self._round(function(*map(self._widen, arrays), **params))

    @property
    def settled(self) -> Callable[[np.ndarray], np.ndarray]:
        """Return the function that rounds a result that is passed on: to storage and back, or not at all."""
        return as_it_is if self._fuses else lambda y: self._widen(self._round(y))
