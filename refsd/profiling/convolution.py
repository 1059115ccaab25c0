"""Ask by which algorithm a 3x3 convolution is computed.

The filter takes the middle pixel and nothing else. A pixel M stands among pixels u: the definition, and a product
of patches, answer u everywhere else. Winograd's F(m x m) adds and subtracts pixels, with this filter those of m x m
outputs, so that M's tile loses u.
"""

import numpy as np

from refsd.profiling.question import Finding, Questioner
from refsd.profiling.types import FLOAT32

_CHANNELS, _SIDE = 32, 40
_LARGE = 2.0**15
# Places of M, apart by more than two tiles.
_PLACES = ((8, 9), (9, 30), (30, 11), (31, 28))
# M / u = 2^b. A transform in float32 loses u from about 20 on, one in 16 bits from about 6 on.
_BITS = np.array([6, 8, 10, 13, 20, 24, 27])
_FLOAT32 = 20
_LOST = 0.25  # of u; F(4x4)'s fractions cost less in float32
_REACH = 8  # pixels to both sides of a place that belong to it


def algorithm(questioner: Questioner) -> list[Finding]:
    """u = M 2^-b in one picture for each b."""
    x = np.empty((len(_BITS), _CHANNELS, _SIDE, _SIDE), np.float32)
    x[:] = (_LARGE * 2.0**-_BITS)[:, None, None, None]
    for p, q in _PLACES:
        x[:, :, p, q] = _LARGE
    weight = np.zeros((_CHANNELS, _CHANNELS, 3, 3), np.float32)
    weight[np.arange(_CHANNELS), np.arange(_CHANNELS), 1, 1] = 1
    y = questioner.ask("conv2d", x.shape, {"padding": (1, 1, 1, 1)}, x=x, weight=weight)
    wrong: np.ndarray = np.any(~np.less_equal(np.abs(y - x), _LOST * x), axis=1)
    for p, q in _PLACES:
        wrong[:, p, q] = False
    side = max(_side(wrong[-1], p, q) for p, q in _PLACES)
    if not side:
        evidence = f"beside 2^15 every 2^{15 - _BITS[-1]} came back: no pixel met another"
        return [Finding("conv2d", "algorithm", "direct or by patches", evidence)]
    least = int(_BITS[wrong.any(axis=(1, 2)).argmax()])
    evidence = f"beside 2^15 pixels of 2^{15 - least} changed in a square of {side}"
    if side >= 2 * _REACH:
        return [Finding("conv2d", "algorithm", "of the whole picture (FFT?)", evidence)]
    kind = FLOAT32 if least >= _FLOAT32 else "16 bits"
    return [Finding("conv2d", "algorithm", f"Winograd F({side}x{side}) in {kind}", evidence)]


def _side(wrong: np.ndarray, p: int, q: int) -> int:
    """The longer side of the box of wrong pixels around a place; 0 if there are none."""
    rows, columns = np.nonzero(wrong[p - _REACH : p + _REACH, q - _REACH : q + _REACH])
    return int(max(np.ptp(rows), np.ptp(columns))) + 1 if len(rows) else 0
