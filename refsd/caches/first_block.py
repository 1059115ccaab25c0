"""First-block cache: compute the first block, and the others only if its residual has changed."""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from refsd.caches.cache import Cache, Call, Limits, Place, Steps, relative_distance


class FirstBlockCache(Cache):
    """Skip all blocks but the first if its residual is near that of the last computed step.

        r = h_1 - h_0
        h_n = h_1 + (h_n' - h_1')         where mean|r - r'| / mean|r'| <= threshold

    A skipped step leaves r' as it is. Each condition is its own.

    Source: ParaAttention's first block cache; diffusers 0.42.1 hooks/first_block_cache.py.
    """

    place = Place.FIRST_BLOCK
    options: ClassVar[Mapping[str, Limits]] = {"threshold": Limits(0.05, 0.0, 100.0)}

    def __init__(self, steps: Steps, threshold: float = 0.05):
        super().__init__(steps)
        self.threshold = threshold
        self.first: dict[str, np.ndarray] = {}
        self.others: dict[str, np.ndarray] = {}

    def reuse(self, call: Call) -> np.ndarray | None:
        before = self.first.get(call.condition)
        if before is None or self.change(call.signal - call.start, before) > self.threshold:
            return None
        return call.signal + self.others[call.condition]

    def change(self, residual: np.ndarray, before: np.ndarray) -> float:
        return relative_distance(residual, before)

    def keep(self, call: Call, end: np.ndarray) -> None:
        self.first[call.condition] = call.signal - call.start
        self.others[call.condition] = end - call.signal
