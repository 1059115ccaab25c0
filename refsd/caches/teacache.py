"""TeaCache: estimate the output's change from that of the first block's modulated input, through a polynomial."""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from refsd.caches.cache import Cache, Call, Limits, Place, Steps, relative_distance

# The polynomial's coefficients, the highest power first. Source: TeaCache's TeaCache4FLUX.
FLUX = (498.651651, -283.781631, 55.8554382, -3.82021401, 0.264230861)


class TeaCache(Cache):
    """Skip all blocks while the rescaled change of the modulated input, added up, is below a threshold.

        change = p(mean|m - m'| / mean|m'|)
        h_n = h_0 + (h_n' - h_0')          where the sum of changes since the last computed step < threshold

    m' is the modulated input of the step before, computed or not. The first and the last step are computed. Each
    condition is its own.

    Source: Liu et al. 2024 (TeaCache), eq. 5 to 7.
    """

    place = Place.MODULATED
    measured = "polynomial"
    options: ClassVar[Mapping[str, Limits]] = {
        "threshold": Limits(0.4, 0.0, 100.0),
        "polynomial": Limits(FLUX, -1e9, 1e9, many=True),
    }

    def __init__(self, steps: Steps, threshold: float = 0.4, polynomial: tuple[float, ...] = FLUX):
        super().__init__(steps)
        self.threshold, self.polynomial = threshold, polynomial
        self.modulated: dict[str, np.ndarray] = {}
        self.residuals: dict[str, np.ndarray] = {}
        self.error: dict[str, float] = {}

    def reuse(self, call: Call) -> np.ndarray | None:
        before = self.modulated.get(call.condition)
        self.modulated[call.condition] = call.signal
        if before is None or self.protected(call.step):
            self.error[call.condition] = 0.0
            return None
        error = self.error[call.condition] + self.change(call.signal, before)
        skips = error < self.threshold
        self.error[call.condition] = error if skips else 0.0
        return call.start + self.residuals[call.condition] if skips else None

    def protected(self, step: int) -> bool:
        return step in (0, self.steps.count - 1)

    def change(self, modulated: np.ndarray, before: np.ndarray) -> float:
        return float(np.polyval(self.polynomial, relative_distance(modulated, before)))

    def keep(self, call: Call, end: np.ndarray) -> None:
        self.residuals[call.condition] = end - call.start
