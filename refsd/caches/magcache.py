"""MagCache: skip while the blocks' residual keeps its size, by ratios measured beforehand for each step."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from refsd.caches.cache import Cache, Call, Limits, Place, Steps

# |residual| over that of the step before, FLUX.1 dev in 28 steps. Source: diffusers 0.42.1 hooks/mag_cache.py.
# fmt: off
FLUX = (
    1.0, 1.21094, 1.11719, 1.07812, 1.0625, 1.03906, 1.03125, 1.03906, 1.02344, 1.03125, 1.02344, 0.98047, 1.01562,
    1.00781, 1.0, 1.00781, 1.0, 1.00781, 1.0, 1.0, 0.99609, 0.99609, 0.98047, 0.98828, 0.96484, 0.95703,
    0.93359, 0.89062,
)
# fmt: on


class MagCache(Cache):
    """Skip all blocks while the estimated error of the residual's size is small.

        ratio = product of the steps' ratios since the last computed step;   error = sum of |1 - ratio|
        h_n = h_0 + (h_n' - h_0')         where error <= threshold, for `most` steps in a row

    The first `retention` of the steps are computed. A table of another length is read at its nearest entries. Each
    condition is its own.

    Source: Ma et al. 2025 (MagCache), section 3.3; diffusers 0.42.1 hooks/mag_cache.py.
    """

    place = Place.STACK
    measured = "ratios"
    options: ClassVar[Mapping[str, Limits]] = {
        "threshold": Limits(0.06, 0.0, 100.0),
        "most": Limits(3, 0, 1000, whole=True),
        "retention": Limits(0.2, 0.0, 1.0),
        "ratios": Limits(FLUX, 0.0, 1000.0, many=True),
    }

    def __init__(
        self,
        steps: Steps,
        threshold: float = 0.06,
        most: int = 3,
        retention: float = 0.2,
        ratios: tuple[float, ...] = FLUX,
    ):
        super().__init__(steps)
        self.threshold, self.most, self.ratios = threshold, most, nearest(ratios, steps.count)
        self.first = int(retention * steps.count + 0.5)
        self.residuals: dict[str, np.ndarray] = {}
        self.counts: dict[str, tuple[float, float, int]] = {}

    def reuse(self, call: Call) -> np.ndarray | None:
        residual = self.residuals.get(call.condition)
        if call.step < self.first:
            return None
        ratio, error, steps = self.counts.get(call.condition, (1.0, 0.0, 0))
        ratio *= self.ratios[call.step]
        error, steps = error + abs(1 - ratio), steps + 1
        if residual is not None and error <= self.threshold and steps <= self.most:
            self.counts[call.condition] = ratio, error, steps
            return call.start + residual
        self.counts[call.condition] = 1.0, 0.0, 0
        return None

    def keep(self, call: Call, end: np.ndarray) -> None:
        self.residuals[call.condition] = end - call.start


def nearest(table: Sequence[float], count: int) -> list[float]:
    """Stretch a table to `count` entries, each the nearest of the table. Source: diffusers, nearest_interp."""
    if len(table) == count or count == 1:
        return [*table[-1:]] if count == 1 else [*table]
    scale = np.float32((len(table) - 1) / (count - 1))
    return [table[i] for i in np.rint(np.arange(count, dtype=np.float32) * scale).astype(int)]
