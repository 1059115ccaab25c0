"""Name a type by the number of bits of its significand."""

import itertools
from collections.abc import Iterable

import ml_dtypes
import numpy as np

FLOAT16, BFLOAT16, TF32 = "float16", "bfloat16", "tf32"
FLOAT32, FLOAT64 = "float32", "float64"
_BY_BITS = {8: BFLOAT16, 11: FLOAT16, 24: FLOAT32, 53: FLOAT64}
# As Numerics writes them.
SHORT = {FLOAT16: "f16", BFLOAT16: "bf16", TF32: "tf32"}
# Float32's significand: the last digits of a quotient of such numbers do not tell 22 bits from 24.
_NEARLY_FLOAT32 = 20


def type_of(bits: int, wide_range: bool = False) -> str:
    """Name the type with a significand of so many bits.

    wide_range: whether 2^17 is kept, which tells TF32 from float16
    """
    if bits == 11 and wide_range:
        return TF32
    if bits >= _NEARLY_FLOAT32 and bits < 53:
        return FLOAT32 if bits <= 24 else FLOAT64
    return _BY_BITS.get(bits, f"{bits} bits")


def significand(kept: Iterable) -> int:
    """Count bits. kept: for k = 1, 2, ... whether 1 + 2^-k kept its last bit -> bits, the leading 1 counted too"""
    return 1 + sum(1 for _ in itertools.takewhile(bool, kept))


def narrowest(y: np.ndarray) -> str:
    """Name the narrowest type that holds all the numbers."""
    y = np.asarray(y, np.float64)
    for name, dtype in ((BFLOAT16, ml_dtypes.bfloat16), (FLOAT16, np.float16), (FLOAT32, np.float32)):
        if np.array_equal(y.astype(dtype).astype(np.float64), y, equal_nan=True):
            return name
    return FLOAT64
