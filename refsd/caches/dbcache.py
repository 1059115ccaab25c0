"""DBCache as sd-cli runs it: reuse while the network's input has hardly changed since the last computed step."""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from refsd.caches.cache import Cache, Call, Limits, Steps
from refsd.caches.ucache import window_of_steps


class DBCache(Cache):
    """Skip a step if the network's input is near that of the last computed step.

        sum|x - x'| / (sum|x'| + 1e-6) < threshold (1 + 0.02 (Fn - 8)) (1 - 0.03 Bn)
        v = x + (v' - x')

    The factors of the threshold lie in 0.5..2 and 0.5..1. The first condition decides for the others. Steps outside
    (0.15, 0.95) of the run are computed.

    cache-dit's own DBCache compares the residual of the first Fn blocks and computes the last Bn. sd-cli computes
    no block in a skipped step, and scales the threshold by both numbers. It reads a warm-up, a mask of steps and a
    TaylorSeer, none of which has an effect: its modes dbcache, taylorseer and cache-dit are this one rule.

    Source: stable-diffusion.cpp 97d2990, src/runtime/cache_dit.hpp, CacheDitConditionState.
    """

    options: ClassVar[Mapping[str, Limits]] = {
        "threshold": Limits(0.08, 0.0, 100.0),
        "Fn": Limits(8, 0, 1000, whole=True),
        "Bn": Limits(0, 0, 1000, whole=True),
    }

    def __init__(self, steps: Steps, threshold: float = 0.08, Fn: int = 8, Bn: int = 0):
        super().__init__(steps)
        front = min(max(1 + 0.02 * (Fn - 8), 0.5), 2.0) if Fn else 1.0
        back = min(max(1 - 0.03 * Bn, 0.5), 1.0) if Bn else 1.0
        self.threshold, self.window = threshold * front * back, window_of_steps(steps, 0.15, 0.95)
        self.ends: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        self.anchor: str | None = None
        self.step, self.skipping = -1, False

    def reuse(self, call: Call) -> np.ndarray | None:
        if call.step != self.step:
            self.step, self.skipping = call.step, False
        if not self.active(call.step):
            return None
        if self.anchor is None:
            self.anchor = call.condition
        if call.condition == self.anchor and self.anchor in self.ends:
            self.skipping = self.change(call.start) < self.threshold
        if not self.skipping or call.condition not in self.ends:
            return None
        x, v = self.ends[call.condition]
        return call.start + (v - x)

    def active(self, step: int) -> bool:
        first, last = self.window
        return last < self.steps.sigmas[step] <= first

    def change(self, x: np.ndarray) -> float:
        assert self.anchor is not None
        before = self.ends[self.anchor][0]
        return float(np.abs(x - before).sum() / (np.abs(before).sum() + 1e-6))

    def keep(self, call: Call, end: np.ndarray) -> None:
        if self.active(call.step):
            self.ends[call.condition] = call.start, end
