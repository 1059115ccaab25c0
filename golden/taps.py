"""Judge what an engine computed on the way to its outputs: find the first wrong operation.

A tap is held against what the reference makes of the engine's own earlier taps: in float64, and under the
engine's numerics. It is right if its RMS error is at most 4 times the honest one's, or 4 times what any honest
float32 engine loses there if that is more; likewise its worst element, bias, gain, channel and tile (verdict.py).
"""

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from refsd.golden.metrics import Metrics, channel_axis, measure
from refsd.numerics.profiles import Numerics

Answer = Mapping[str, np.ndarray]

# One rounding in float32, of an operation that the honest run happens to compute without error.
_ROUNDING = 2.0**-24
_ROUNDING_FLOAT64 = 2.0**-50


def measure_taps(
    found: Answer,
    truth: Answer,
    honest: Answer,
    numerics: Numerics,
    losses: Mapping[str, float] = MappingProxyType({}),
    spreads: Answer = MappingProxyType({}),
) -> list[Metrics]:
    """Measure those taps of the truth that the engine gave, in the truth's order: that of computation.

    honest:  the reference's taps under `numerics`, which the engine declares
    losses:  tap -> what an honest float32 engine may lose between it and the tap before, as a share of its RMS
    spreads: tap -> the standard deviation that independent roundings give each element, where it is known
    """
    exact = numerics.compute == "float64"
    return [
        measure(
            name,
            found[name],
            np.asarray(y, np.float64),
            honest[name],
            None,
            channel_axis(y),
            _ROUNDING_FLOAT64 if exact else max(_ROUNDING, losses.get(name, 0.0)),
            spreads.get(name),
        )
        for name, y in truth.items()
        if name in found
    ]
