"""UCache: EasyCache for UNets, whose threshold grows on the way and whose errors grow with each skipped step."""

import math
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from refsd.caches.cache import Limits, Steps
from refsd.caches.easycache import END, START, EasyCache

EARLY, LATE = 0.5, 1.5  # factors of the threshold in the first and last fifth of the steps
GAIN = 1.6  # of the running mean of output changes
STREAK = 0.5  # growth of the estimate with each skipped step in a row


class UCache(EasyCache):
    """Skip a step while the estimated error, added up, is below a threshold.

        change = rate mean|x - x'| / sqrt(mean|v'| 1.6 c) (1 + k / 2)
        error  = decay error + change
        v      = x + (v' - x')                            where error < threshold (0.5, 1 or 1.5)

    c is a running mean of the outputs' changes, k the number of steps skipped in a row. The threshold's factor is
    0.5 until a fifth of the steps is computed, 1.5 after four fifths. relative 0: neither change nor threshold is
    divided by the output's size. reset 0: a computed step leaves the error as it is.

    Source: stable-diffusion.cpp 97d2990, src/runtime/ucache.hpp.
    """

    options: ClassVar[Mapping[str, Limits]] = {
        "threshold": Limits(1.0, 0.0, 100.0),
        "start": START,
        "end": END,
        "decay": Limits(1.0, 0.0, 1.0),
        "relative": Limits(1, 0, 1, whole=True),
        "reset": Limits(1, 0, 1, whole=True),
    }

    def __init__(
        self,
        steps: Steps,
        threshold: float = 1.0,
        start: float = 0.15,
        end: float = 0.95,
        decay: float = 1.0,
        relative: int = 1,
        reset: int = 1,
    ):
        super().__init__(steps, threshold, start, end)
        self.decay, self.relative, self.reset = decay, relative, reset
        self.computed, self.streak, self.average = 0, 0, None

    def sigma_window(self, start: float, end: float) -> tuple[float, float]:
        """Take both sigmas from the run's own steps, not from the training's."""
        return window_of_steps(self.steps, start, end)

    def decide(self, x: np.ndarray) -> bool:
        if self.x is None:
            return False
        self.moved = float(np.abs(x - self.x).mean())
        if self.rate is None or self.norm == 0 or self.moved == 0:
            return False
        change = self.rate * self.moved * (1 + STREAK * self.streak)
        self.error = self.error * self.decay + (change / self.scale() if self.relative else change)
        skips = self.error < self.limit() * (1.0 if self.relative else self.norm)
        if skips:
            self.streak += 1
        elif self.reset:
            self.error = 0.0
        return skips

    def scale(self) -> float:
        """Return the geometric mean of the output's size and of its changes."""
        base = max(self.norm, 1e-6)
        return math.sqrt(base * (base if self.average is None else max(GAIN * self.average, 1e-6)))

    def limit(self) -> float:
        progress = min(self.computed / self.steps.count, 1.0)
        return self.threshold * (EARLY if progress < 0.2 else LATE if progress > 0.8 else 1.0)

    def learn(self, changed: float) -> None:
        self.computed, self.streak = self.computed + 1, 0
        if changed:
            self.average = changed if self.average is None else 0.8 * self.average + 0.2 * changed


def window_of_steps(steps: Steps, start: float, end: float) -> tuple[float, float]:
    """Return the sigmas of the steps at two shares of the run."""
    at = lambda share: float(steps.sigmas[min(int(share * steps.count), steps.count - 1)])
    return at(start), at(end)
