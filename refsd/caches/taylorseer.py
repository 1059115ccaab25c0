"""TaylorSeer: extrapolate the output from its divided differences over the computed steps."""

import math
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from refsd.caches.cache import Cache, Call, Limits, Steps


class TaylorSeer(Cache):
    """Compute every `interval`-th step, and extrapolate the others.

        f_0 = v    f_{k+1} = (f_k - f_k') / (s - s')      at a computed step s; ' at the computed one before
        v(s + d) = sum_k f_k d^k / k!                     k up to `order`, as far as there are differences

    Steps below `before` and from `after` on are computed, and of the others those where s - before - 1 is a
    multiple of the interval. Each condition is its own.

    diffusers does this to the last projection (its lite mode, as here) or to every attention, and keeps f_k in
    bfloat16 by default; the reference keeps what its numerics compute in.

    Source: Liu et al. 2025 (TaylorSeer), eq. 6 and 7; diffusers 0.42.1 hooks/taylorseer_cache.py.
    """

    options: ClassVar[Mapping[str, Limits]] = {
        "interval": Limits(5, 1, 1000, whole=True),
        "before": Limits(3, 1, 1000, whole=True),
        "after": Limits(1000, 0, 1000, whole=True),
        "order": Limits(1, 0, 8, whole=True),
    }

    def __init__(self, steps: Steps, interval: int = 5, before: int = 3, after: int = 1000, order: int = 1):
        super().__init__(steps)
        self.interval, self.before, self.after, self.order = interval, before, after, order
        self.factors: dict[str, list[np.ndarray]] = {}
        self.last: dict[str, int] = {}

    def computes(self, step: int) -> bool:
        refreshed = (step - self.before - 1) % self.interval == 0
        return step < self.before or step >= self.after or refreshed

    def reuse(self, call: Call) -> np.ndarray | None:
        if self.computes(call.step):
            return None
        distance, factors = call.step - self.last[call.condition], self.factors[call.condition]
        y = np.zeros_like(factors[0])
        for k, factor in enumerate(factors):
            y = y + factor * self.weight(distance, k)
        return y

    def weight(self, distance: int, k: int) -> float:
        return distance**k / math.factorial(k)

    def keep(self, call: Call, end: np.ndarray) -> None:
        factors, before = [end], self.factors.get(call.condition, [])
        for k in range(min(self.order, len(before))):
            factors.append((factors[k] - before[k]) / (call.step - self.last[call.condition]))
        self.factors[call.condition], self.last[call.condition] = factors, call.step
