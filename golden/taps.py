"""Judge what an engine computed on the way to its outputs: find the first wrong operation.

A tap is held against what the reference makes of the engine's own earlier taps: in float64, and under the engine's
numerics. It is right if its RMS error is at most 4 times the honest one's, or 4 times what a float32 sum of as many
terms loses if that is more; likewise its worst element, bias, gain, channel and tile (verdict.py).

A sum of K terms of random signs, added one by one, loses at most u sqrt(K/2) of its RMS, where u is 2^-24: after k
terms it has grown to sqrt(k), and each addition loses at most u of that, at random. Sums in blocks, or of several
lanes, lose less. An engine may add in any order.
"""

import math
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
    terms: Mapping[str, int] = MappingProxyType({}),
) -> list[Metrics]:
    """Measure those taps of the truth that the engine gave, in the truth's order: that of computation.

    honest: the reference's taps under `numerics`, which the engine declares
    terms:  tap -> how many terms the longest sum has that leads to it from the tap before
    """
    rounding = _ROUNDING_FLOAT64 if numerics.compute == "float64" else _ROUNDING
    return [
        measure(
            name,
            found[name],
            np.asarray(y, np.float64),
            honest[name],
            None,
            channel_axis(y),
            rounding * max(1.0, math.sqrt(terms.get(name, 1) / 2)),
        )
        for name, y in truth.items()
        if name in found
    ]
