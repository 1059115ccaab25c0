"""Judge an engine's intermediate results ("taps"), to find the first wrong operation.

A tap is compared with what the reference computes from the engine's own earlier taps: in float64, and under the
engine's numerics. It is right if its RMS error is at most 4 times the honest one's, or 4 times what any honest
float32 engine loses there if that is more; likewise its worst element, bias, gain, channel and tile (verdict.py).
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
from msgspec.structs import replace

from refsd.golden.metrics import Metrics, channel_axis, measure
from refsd.golden.projections import project
from refsd.golden.rounding import unit as unit_of
from refsd.numerics.profiles import Numerics

Answer = Mapping[str, np.ndarray]

# The least error to assume, one rounding in float32, where the honest run happens to have none.
_ROUNDING = 2.0**-24
_ROUNDING_FLOAT64 = 2.0**-50


def measure_taps(
    actual: Answer,
    truth: Answer,
    honest: Answer,
    numerics: Numerics,
    losses: Mapping[str, float] = MappingProxyType({}),
    spreads: Answer = MappingProxyType({}),
    effects: Callable[[str], Mapping[str, np.ndarray]] | None = None,
    scattered: Mapping[str, Sequence[np.ndarray]] = MappingProxyType({}),
) -> list[Metrics]:
    """Measure those taps of the truth that the engine gave, in the truth's order: that of computation.

    honest:  the reference's taps under `numerics`, which the engine declares
    losses:  tap -> what an honest float32 engine may lose between it and the tap before, as a share of its RMS
    spreads: tap -> the standard deviation that independent roundings give each element, where it is known
    effects: tap -> known changes by name -> their effect on it; None: do not project errors on changes
    scattered: tap -> errors of honest runs with random roundings, where they are known
    """
    measured = []
    for name, y in truth.items():
        if name not in actual:
            continue
        least = _ROUNDING_FLOAT64 if numerics.compute == "float64" else max(_ROUNDING, losses.get(name, 0.0))
        y, near, channel = np.asarray(y, np.float64), honest[name], channel_axis(y)
        m = measure(name, actual[name], y, near, None, channel, least, spreads.get(name))
        if (
            effects is not None
            and m.found == m.shape
            and all(np.isfinite(of).all() for of in (actual[name], y, near))
        ):
            unit = unit_of(numerics.storage_dtype)
            along = project(actual[name], y, near, channel, unit, least, effects(name), scattered.get(name, ()))
            m = replace(m, along=along)
        measured.append(m)
    return measured
