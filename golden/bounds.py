"""Bound how far an honest engine may be from the truth, element by element, given its numerics.

Each bound is a run of the operation on absolute values, as TOSA's conformance rule does it: it
scales with the data, where a fixed rtol, atol or NMSE does not. Terms are first order; u is the
relative error of one rounding (rounding.py), gamma(n) that of n roundings in a row. Engines that sum
in another order, in blocks or in a wider type stay inside, since gamma(n) is the serial worst case.

If an element's bound overflows, any value passes; if it is zero, the element must be exact.
Each operation's page (operations/) has its bound; this module has the bounds' arguments (Run) and
the terms that several of them share.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from refsd.golden.rounding import Bound, Terms, floor, gamma, largest, moved_in_turn, unit
from refsd.numerics.profiles import Numerics
from refsd.numerics.quantization import Quantization
from refsd.numerics.tensor import StoredTensor

# Error of exp, erf, tanh, sin and cos in ordinary math libraries, in units of u.
FUNCTION = 4.0
# Terms of a sum are equal if (sum t)^2 = n sum t^2, up to this.
_EQUAL = 1e-9


class Run(NamedTuple):
    """The arguments of every bound; arrays are float64.

    inputs: the tensors' values; stored: the tensors; types: their storage types; truth: the float64 answer
    """

    numerics: Numerics
    inputs: Mapping[str, np.ndarray]
    types: Mapping[str, str]
    params: Mapping[str, Any]
    truth: np.ndarray
    stored: Mapping[str, StoredTensor]

    @property
    def u(self) -> float:
        return unit(self.numerics.compute_dtype)

    def between(self, size: np.ndarray) -> np.ndarray:
        """Bound the rounding of stored intermediates of this size, where torch composes an operation from several.

        It is 0 where storage is as wide as compute, and inf beyond the largest number that is stored.
        """
        if self.numerics.storage == self.numerics.compute:
            return np.zeros_like(size)
        dtype = self.numerics.storage_dtype
        moved = unit(dtype) * size + float(ml_dtypes.finfo(dtype).smallest_subnormal) / 2
        return np.where(size > largest(dtype), np.inf, moved)

    def moved(self, name: str, through: str | Quantization | None = None) -> np.ndarray:
        """Bound the error of storing an input and then converting it through a type."""
        return moved_in_turn(self.inputs[name], self.numerics.storage, through)

    def rounded(self, terms: Terms, extra: Any = 0.0) -> Bound:
        """Return the bound: the terms, the rounding of the result, flushed subnormals, and `extra`."""
        storage = self.numerics.storage_dtype
        terms.add(unit(storage) * (np.abs(self.truth) + terms.limit))
        terms.add(floor(storage) + floor(self.numerics.compute_dtype) + extra)
        limit = np.where(np.abs(self.truth) + terms.limit > largest(storage), np.inf, terms.limit)
        bound = Terms().add(limit, np.sqrt(terms.square)).bound(self.truth.shape)
        return bound._replace(groups=terms.groups)


def products(u: float, n: int, absolute, squares, result) -> tuple[Any, Any]:
    """Return the limit and the spread of a sum of n products.

    limit:  gamma(n + 1) sum |w x|
    spread: step k rounds a partial sum s_k, E[s_k^2] <= sum t^2 k/n + result^2 (k/n)^2 for terms t in random
            order; the sum over k of u^2/3 E[s_k^2] is u^2 n/3 (sum t^2 / 2 + result^2 / 3). Where all terms are
            equal, steps round the same way as long as the sum has one exponent: the limit / sqrt(3)
    """
    limit = gamma(n + 1, u) * absolute
    spread = u * np.sqrt((n + 1) / 3 * (squares / 2 + result**2 / 3) + squares / 3)
    equal = (n > 1) & (result**2 >= (1 - _EQUAL) * n * squares)
    return limit, np.where(equal, limit / math.sqrt(3), spread) if np.any(equal) else spread


def sums(
    run: Run, op: str, n: int, absolute, squares, result, input_type: str | Quantization | None = None
) -> tuple[Any, Any]:
    """Return the limit and the spread of a sum of n products as the numerics accumulate it. op: as in Numerics.sums

    In float16, runs of r products are rounded R = r / step times each, then added in `compute`:

    limit:  gamma(R) sum |w x|, plus half a subnormal for each rounding; inf where a sum may leave float16's range
    spread: as in `products`, for n / r runs: u^2/3 R (sum t^2 / 2 + result^2 (r/n) / 3)
    """
    limit, spread = products(run.u, n, absolute, squares, result)
    how = run.numerics.sums_of(op, input_type)
    if how is None:
        return limit, spread
    half = np.dtype(np.float16)
    u, subnormal = unit(half), float(ml_dtypes.finfo(half).smallest_subnormal) / 2
    r = min(how.run or n, n)
    R, runs = math.ceil(r / how.step), math.ceil(n / r)
    limit = limit + gamma(R, u) * absolute + R * runs * subnormal
    limit = np.where(absolute > largest(half), np.inf, limit)
    square = u**2 * R / 3 * (squares / 2 + result**2 * (r / n) / 3) + R * runs * subnormal**2 / 3
    return limit, np.sqrt(spread**2 + square)


def bias_of(run: Run) -> tuple[Any, Any]:
    if "bias" not in run.inputs:
        return 0.0, 0.0
    return np.abs(run.inputs["bias"]), run.moved("bias")


def bias_per_channel(run: Run) -> tuple[Any, Any]:
    """Return bias_of in a shape that broadcasts to an output [N, K, ...]."""
    shape = (-1,) + (1,) * (run.truth.ndim - 2)
    bias, moved = bias_of(run)
    return np.reshape(bias, shape), np.reshape(moved, shape)


def movement(run: Run, through: str | Quantization | None = None) -> Bound:
    """Bound an operation that only moves numbers: 0, except where the storage or `through` cannot hold them."""
    return Terms().add(moved_in_turn(run.truth, run.numerics.storage, through)).bound(run.truth.shape)
