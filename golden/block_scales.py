"""Set the scales of random blocks: where each block type keeps them, and how they get an exponent."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np


class ScaleField(NamedTuple):
    """A scale in a block.

    offset: its first byte
    shift:  its exponent relative to the recipe's
    kind:   its format, a key of KINDS
    """

    offset: int
    shift: int
    kind: str = "f16"


class Kind(NamedTuple):
    """A format of scales.

    bias:        of the exponent field
    least, most: range of the exponent field; below 1 the scale is a subnormal number
    write:       (blocks, offset, field) replaces the exponent field and keeps the other random bits
    """

    bias: int
    least: int
    most: int
    write: Callable[[np.ndarray, int, int], None]


def _bounded(bits: np.ndarray, field: int) -> np.ndarray:
    """Keep a float16's sign and mantissa, replace its exponent field; below 1 the number is subnormal."""
    sign, mantissa = bits & 0x8000, bits & 0x03FF
    if field >= 1:
        return sign | mantissa | np.uint16(field << 10)
    return sign | (mantissa | 0x0400) >> np.uint16(1 - field)


def _write_f16(blocks: np.ndarray, at: int, field: int) -> None:
    bits = _bounded(blocks[:, at].astype(np.uint16) | blocks[:, at + 1].astype(np.uint16) << 8, field)
    blocks[:, at], blocks[:, at + 1] = bits & 0xFF, bits >> 8


def _write_pieces(blocks: np.ndarray, at: int, field: int) -> None:
    """Write a float16 to the upper nibbles of bytes at + 1, at + 3, at + 5 and at + 7, lowest first."""
    upper = blocks[:, at + 1 : at + 8 : 2]
    parts = (upper >> 4).astype(np.uint16)
    bits = _bounded(parts[:, 0] | parts[:, 1] << 4 | parts[:, 2] << 8 | parts[:, 3] << 12, field)
    for k in range(4):
        blocks[:, at + 1 + 2 * k] = upper[:, k] & 0xF | ((bits >> 4 * k & 0xF) << 4).astype(np.uint8)


def _write_e8m0(blocks: np.ndarray, at: int, field: int) -> None:
    """Write a scale that is an exponent alone: the field, or one less if the random byte's lowest bit is set."""
    blocks[:, at] = field - (blocks[:, at] & 1)


def _write_ue4m3(blocks: np.ndarray, at: int, field: int) -> None:
    blocks[:, at] = blocks[:, at] & 0x7 | field << 3


KINDS = {
    "f16": Kind(15, -9, 30, _write_f16),
    "f16 in pieces": Kind(15, -9, 30, _write_pieces),
    "e8m0": Kind(127, 2, 254, _write_e8m0),
    "ue4m3": Kind(7, 0, 14, _write_ue4m3),
}

# With these shifts the values have the standard deviation of "bell", within a factor of sqrt(2).
SCALE_FIELDS: dict[str, tuple[ScaleField, ...]] = {
    "q4_0": (ScaleField(0, 12),),
    "q4_1": (ScaleField(0, 11), ScaleField(2, 14)),
    "q5_0": (ScaleField(0, 11),),
    "q5_1": (ScaleField(0, 10), ScaleField(2, 14)),
    "q8_0": (ScaleField(0, 8),),
    "q2_k": (ScaleField(80, 10), ScaleField(82, 11)),
    "q3_k": (ScaleField(108, 9),),
    "q4_k": (ScaleField(0, 6), ScaleField(2, 9)),
    "q5_k": (ScaleField(0, 5), ScaleField(2, 9)),
    "q6_k": (ScaleField(208, 4),),
    "iq2_xxs": (ScaleField(0, 9),),
    "iq2_xs": (ScaleField(0, 9),),
    "iq3_xxs": (ScaleField(0, 7),),
    "iq1_s": (ScaleField(0, 12),),
    "iq4_nl": (ScaleField(0, 9),),
    "iq3_s": (ScaleField(0, 7),),
    "iq2_s": (ScaleField(0, 9),),
    "iq4_xs": (ScaleField(0, 4),),
    "iq1_m": (ScaleField(48, 12, "f16 in pieces"),),
    "tq1_0": (ScaleField(52, 15),),
    "tq2_0": (ScaleField(64, 14),),
    "mxfp4": (ScaleField(0, 14, "e8m0"),),
    "nvfp4": tuple(ScaleField(g, 13, "ue4m3") for g in range(4)),
    "q1_0": (ScaleField(0, 15),),
    "q2_0": (ScaleField(0, 14),),
}


def scales_fit(type: str, exponent: int) -> bool:
    """Return True if every scale of the type can hold a recipe's exponent."""
    kinds = ((KINDS[field.kind], exponent + field.shift) for field in SCALE_FIELDS[type])
    return all(kind.least <= kind.bias + shifted <= kind.most for kind, shifted in kinds)


def set_scales(type: str, blocks: np.ndarray, exponent: int) -> None:
    """Give the scales of random blocks their exponent, in place. blocks: uint8 [n, bytes]"""
    for offset, shift, kind in SCALE_FIELDS[type]:
        KINDS[kind].write(blocks, offset, KINDS[kind].bias + exponent + shift)
