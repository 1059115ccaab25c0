"""Estimate the rounding errors of an honest engine's taps by Monte Carlo arithmetic (Parker 1997).

An engine may run several operations between two taps, and a norm multiplies the rounding errors of the one before
it by 1 / sigma of its group. So an honest engine's error differs from element to element, and no single share of
the tensor's RMS describes it. The reference therefore runs a few more times. In each run it adds random noise to
every operation's result, with the standard deviation that the page in golden/operations derives for float32, and
rounds to storage up or down at random.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import ml_dtypes
import numpy as np

from refsd.causes.model.observed import Arguments, Call, Observed, call_of
from refsd.golden.operations import OPERATIONS
from refsd.numerics.profiles import Numerics

# The page's bound of attention keeps all scores in memory. Above this many, the spread is a share of each row.
_MOST_SCORES = 2**24
# Number of runs.
RUNS = 8


class Scattered(Observed):
    """Observed, with random roundings.

    rng:     source of the random numbers
    spreads: standard deviations of each call, in order: the first run fills the list, later runs read it
    """

    def __init__(self, numerics: Numerics, rng: np.random.Generator, spreads: list[np.ndarray], deviations=()):
        super().__init__(numerics, deviations)
        self._rng, self._spreads = rng, spreads
        self._measures = False

    def observe(self, method: str, right: Callable[[], np.ndarray], arguments: Arguments) -> np.ndarray:
        inside = self._inside
        y = super().observe(method, right, arguments)
        if inside or y.dtype.kind in "iub":
            return y
        at = len(self.ops) - 1
        if at == len(self._spreads):
            call = call_of(method, arguments) if _scores(method, arguments) <= _MOST_SCORES else None
            self._spreads.append(self._spread(call, np.asarray(y, np.float64)).astype(np.float32))
        with np.errstate(invalid="ignore", over="ignore"):
            moved = self._widen(y) + (self._spreads[at] * self._rng.standard_normal(y.shape)).astype(
                self.numerics.compute
            )
        return self._scattered(np.where(np.isfinite(moved), moved, self._widen(y)))

    def pass_over(self, method: str) -> None:
        super().pass_over(method)
        if len(self.ops) > len(self._spreads):
            self._spreads.append(np.zeros((), np.float32))

    def _spread(self, call: Call | None, y: np.ndarray) -> np.ndarray:
        """Return the standard deviation of an honest float32 engine's error in a call, per element."""
        if call is not None:
            spread = OPERATIONS[call.op].bound_of(self.float32, call.inputs, call.params, y).spread
            return np.where(np.isfinite(spread), spread, 0.0)
        rows = np.sqrt(np.mean(np.square(y), axis=-1, keepdims=True)) if y.size else y
        return self.losses[-1] * np.broadcast_to(rows, y.shape)

    def _round(self, y) -> np.ndarray:
        return self._scattered(y) if self._inside else super()._round(y)

    def _scattered(self, y: np.ndarray) -> np.ndarray:
        """Round y to storage, up or down at random, the nearer value being likelier. Exact values stay."""
        if self.numerics.storage == self.numerics.compute or y.dtype == self.numerics.storage_dtype:
            return super()._round(y)
        dtype = self.numerics.storage_dtype
        info = ml_dtypes.finfo(dtype)
        _, exponent = np.frexp(np.where(np.isfinite(y), y, 0))
        step = np.maximum(
            np.ldexp(np.float64(info.eps), exponent - 1), np.float64(info.smallest_subnormal)
        )  # between two neighbours
        moved = y + step * (self._rng.random(y.shape) - 0.5)
        return super()._round(np.where(np.abs(y) < float(info.max), moved, y))


def spread_of_runs(
    run: Callable[[Scattered], Mapping[str, np.ndarray]],
    truths: Mapping[str, np.ndarray],
    numerics: Numerics,
    deviations=(),
    kept: Mapping[str, list[np.ndarray]] = MappingProxyType({}),
) -> dict[str, np.ndarray]:
    """Return the RMS error of each element of the truths' tensors over RUNS runs.

    run:  arithmetic -> tensors by name
    kept: name -> list to which the errors of each run are appended
    """
    squares = {name: np.zeros(y.shape) for name, y in truths.items()}
    of_calls: list[np.ndarray] = []
    for seed in range(RUNS):
        for name, y in run(Scattered(numerics, np.random.default_rng(seed), of_calls, deviations)).items():
            if name in squares:
                error = np.asarray(y, np.float64) - truths[name]
                error = np.where(np.isfinite(error), error, 0.0)
                squares[name] += error**2
                if name in kept:
                    kept[name].append(error)
    return {name: np.sqrt(y / RUNS) for name, y in squares.items()}


def _scores(method: str, arguments: Arguments) -> int:
    """Return the number of scores of an attention; 0 for other methods."""
    if method != "attention":
        return 0
    (B, L, H, _), J = np.shape(arguments["q"]), np.shape(arguments["k"])[1]
    return B * L * H * J
