"""TF32: float32 with a significand of 11 bits, to which tensor cores round the factors of products."""

import numpy as np

_DROPPED = 13  # bits removed from float32's significand of 24
# Unit roundoff: half a unit in the last place, relative.
UNIT = 2.0**-11


def to_tf32(x: np.ndarray) -> np.ndarray:
    """Round to nearest, ties to even; keep NaN and infinity. -> the values in x's dtype

    x: float32, or float64 with float32 numbers; any shape
    Source: NVIDIA A100 white paper, 2020, "TF32": 8 bits of exponent, 10 of the significand stored.
    """
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    last = (bits >> _DROPPED) & 1
    rounded = (bits + np.uint32((1 << (_DROPPED - 1)) - 1) + last) & np.uint32(0xFFFFFFFF << _DROPPED & 0xFFFFFFFF)
    y = rounded.view(np.float32)
    return np.where(np.isfinite(x), y, x).astype(x.dtype)
