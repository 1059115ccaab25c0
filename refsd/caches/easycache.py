"""EasyCache: estimate the output's change from the input's, and add the last residual while it stays small."""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from refsd.caches.cache import Cache, Call, Limits, Steps, mean_distance

START, END = Limits(0.15, 0.0, 1.0), Limits(0.95, 0.0, 1.0)


class EasyCache(Cache):
    """Skip a step while the estimated changes of the output, added up over skipped steps, are below a threshold.

        change  = rate mean|x - x'| / mean|v'|         rate = mean|v' - v''| / mean|x' - x''|
        v       = x + (v' - x')                        where the sum of changes < threshold

    x', v' are input and output of the last computed call of the first condition, which decides for the others; each
    condition has its own residual. Steps whose sigma lies outside (sigma_at(end), sigma_at(start)] are computed and
    change nothing that is kept.

    Source: Zhou et al. 2025 (EasyCache); stable-diffusion.cpp 97d2990, src/runtime/easycache.hpp.
    """

    options: ClassVar[Mapping[str, Limits]] = {"threshold": Limits(0.2, 0.0, 100.0), "start": START, "end": END}

    def __init__(self, steps: Steps, threshold: float = 0.2, start: float = 0.15, end: float = 0.95):
        super().__init__(steps)
        self.threshold, self.window = threshold, self.sigma_window(start, end)
        self.residuals: dict[str, np.ndarray] = {}
        self.anchor: str | None = None
        self.step, self.skipping = -1, False
        self.x: np.ndarray | None = None
        self.v: np.ndarray | None = None
        self.norm, self.rate, self.moved, self.error = 0.0, None, None, 0.0

    def sigma_window(self, start: float, end: float) -> tuple[float, float]:
        """Return the sigma at which caching begins, and the one at which it is over."""
        first = np.inf if start <= 0 else self.steps.sigma_at(start)
        return first, 0.0 if end >= 1 else self.steps.sigma_at(end)

    def reuse(self, call: Call) -> np.ndarray | None:
        if call.step != self.step:
            self.begin(call.step)
        if not self.active(call.step):
            return None
        if self.anchor is None:
            self.anchor = call.condition
        if not self.skipping and call.condition == self.anchor:
            self.skipping = self.decide(call.start)
        if not self.skipping or call.condition not in self.residuals:
            return None
        return call.start + self.residuals[call.condition]

    def begin(self, step: int) -> None:
        self.step, self.skipping, self.moved = step, False, None

    def active(self, step: int) -> bool:
        first, last = self.window
        return last < self.steps.sigmas[step] <= first

    def decide(self, x: np.ndarray) -> bool:
        """Add the estimated change of the output to the sum; True if the step is skipped."""
        if self.x is None:
            return False
        self.moved = mean_distance(x, self.x)
        if self.rate is None or self.norm == 0 or self.moved == 0:
            return False
        self.error += self.rate * self.moved / self.norm
        skips = self.error < self.threshold
        self.error = self.error if skips else 0.0
        return skips

    def keep(self, call: Call, end: np.ndarray) -> None:
        if not self.active(call.step):
            return
        self.residuals[call.condition] = end - call.start
        if call.condition != self.anchor:
            return
        changed = 0.0 if self.v is None else mean_distance(end, self.v)
        self.learn(changed)
        if self.moved and changed:
            self.rate = changed / self.moved
        self.x, self.v, self.norm = call.start, end, float(np.abs(end).mean())
        self.moved = None

    def learn(self, changed: float) -> None:
        """Take the change of the output since the last computed step."""
        self.error = 0.0
