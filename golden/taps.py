"""Judge what an engine computed on the way to its outputs: find the first wrong operation.

A tap is right if its RMS error is at most 4 times the honest run's, or 4 times 2^-24 of the truth's RMS if that is
more; likewise its worst element, bias, gain, worst channel and worst tile (verdict.py). Taps come in the order of
computation. The first wrong one is where the bug is: those after it inherit its error.
"""

from collections.abc import Mapping

import numpy as np

from refsd.golden.metrics import Metrics, channel_axis, measure
from refsd.numerics.profiles import Numerics

Answer = Mapping[str, np.ndarray]

# One rounding in float32, of an operation that the honest run happens to compute without error.
_ROUNDING = 2.0**-24
_ROUNDING_FLOAT64 = 2.0**-50


def measure_taps(found: Answer, truth: Answer, honest: Answer, numerics: Numerics) -> list[Metrics]:
    """Measure those taps of the truth that the engine gave, in the truth's order: that of computation.

    honest: the reference's taps under `numerics`, which the engine declares
    """
    least = _ROUNDING_FLOAT64 if numerics.compute == "float64" else _ROUNDING
    return [
        measure(name, found[name], np.asarray(y, np.float64), honest[name], None, channel_axis(y), least)
        for name, y in truth.items()
        if name in found
    ]
