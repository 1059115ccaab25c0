"""Read the bits of 8- and 16-bit floats in a wrong way: subnormals, NaN codes, the exponent's bias, the sign.

    y = (-1)^s 2^(max(e, 1) - bias) ([e > 0] + m / 2^M)

for a sign, an exponent and a mantissa of M bits. This is a second reader of them, any part of which can be wrong.
"""

from collections.abc import Callable, Iterator
from itertools import chain
from typing import NamedTuple

import numpy as np

from refsd.numerics.tensor import SCALAR_TYPES, Scaling, StoredTensor


class _Layout(NamedTuple):
    """
    exponent, mantissa: bits of each
    ieee: all codes with the highest exponent are infinite or NaN; else only those with all mantissa bits, too
    """

    exponent: int
    mantissa: int
    ieee: bool

    @property
    def bias(self) -> int:
        return 2 ** (self.exponent - 1) - 1


_LAYOUTS = {
    "f8_e4m3": _Layout(4, 3, False),
    "f8_e5m2": _Layout(5, 2, True),
    "f16": _Layout(5, 10, True),
    "bf16": _Layout(8, 7, True),
}


# How 16 bits, uint16, are joined from two bytes if the lower one has a sign, as Java's have and C's char may have.
SIGNED_LOWER_BYTE: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "lower byte is or-ed as a signed number: from 128 on it fills the upper one": lambda b: (
        b | (b >> 7 & 1) * 0xFF00
    ),
    "lower byte is added as a signed number: from 128 on it is 256 less": lambda b: b - ((b & 128) << 1),
}


def misread_floats(tensor: StoredTensor) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (name, values) with the bits of a small float misread; nothing for a tensor of another type."""
    if tensor.type not in _LAYOUTS:
        return
    layout = _LAYOUTS[tensor.type]
    bits = np.ascontiguousarray(tensor.data).view(f"u{tensor.data.itemsize}").astype(np.int64).reshape(tensor.shape)
    scale = tensor.scaling.scale[0] if isinstance(tensor.scaling, Scaling) else 1.0
    with np.errstate(all="ignore"):
        right = np.asarray(tensor.values(), np.float32)
        signed = SIGNED_LOWER_BYTE.items() if layout.exponent + layout.mantissa == 15 else ()
        two = (
            (how, join(bits.astype(np.uint16)).view(SCALAR_TYPES[tensor.type]).astype(np.float64))
            for how, join in signed
        )
        for name, y in chain(two, _misread(bits, layout)):
            values = (y.astype(np.float32) * np.float32(scale)).astype(np.float32)
            if not np.array_equal(values, right, equal_nan=True):
                yield f"{tensor.type}: {name}", values
        for other in _LAYOUTS:
            if other != tensor.type and SCALAR_TYPES[other].itemsize == tensor.data.itemsize:
                values = np.ascontiguousarray(tensor.data).view(SCALAR_TYPES[other]).astype(np.float32)
                yield f"{tensor.type}: its bits read as {other}", (values * np.float32(scale)).reshape(tensor.shape)


def _misread(bits: np.ndarray, of: _Layout) -> Iterator[tuple[str, np.ndarray]]:
    E, M, bias = of.exponent, of.mantissa, of.bias
    sign = np.where(bits >> (E + M) & 1, -1.0, 1.0)
    e, m = bits >> M & (2**E - 1), bits & (2**M - 1)
    top, all_bits = 2**E - 1, 2**M - 1
    special = (e == top) & (of.ieee | (m == all_bits))
    small = e == 0

    def number(e, m, bias=bias):
        return 2.0 ** (np.maximum(e, 1) - bias) * ((e > 0) + m / 2.0**M)

    plain = number(e, m)
    right = sign * np.where(special, np.where(of.ieee & (m == 0), np.inf, np.nan), plain)
    yield "subnormals (exponent 0) taken for zero", np.where(small, 0.0, right)
    with_one = sign * 2.0**-bias * (1 + m / 2.0**M)
    phrase = "subnormals (exponent 0) read with the 1 before the point that they lack"
    yield phrase, np.where(small & (m > 0), with_one, right)
    yield "exponent 0 read with the 1 before the point: zeros and subnormals", np.where(small, with_one, right)
    yield "subnormals (exponent 0) halved: 2^-bias for 2^(1 - bias)", np.where(small, right / 2, right)
    yield "subnormals (exponent 0) doubled: 2^(2 - bias) for 2^(1 - bias)", np.where(small, right * 2, right)
    yield "subnormals without their sign", np.where(small, np.abs(right), right)
    yield "without the sign bit", np.abs(right)
    yield "the sign bit read the other way", -right
    for by in (-2, -1, 1, 2, 8, -8) if E + M == 7 else ():  # of wider types a power of two is a factor
        other = sign * np.where(special, right, number(e, m, bias + by))
        yield f"exponent bias of {bias + by}, not {bias}", other
    if special.any():
        yield "NaN and infinity codes read as numbers", sign * plain
    if not of.ieee:
        highest = (e == top) & ~special
        yield "the highest exponent taken for NaN and infinity", np.where(highest, np.nan, right)
        below = number(np.array(top - 1), np.array(all_bits))
        yield f"numbers beyond {below:g} limited to it", np.where(highest, sign * below, right)
    if E + M == 7:
        as_whole = np.where(bits > 127, bits - 256, bits).astype(np.float64)
        yield "bytes read as whole numbers", as_whole
        yield "bytes read as whole numbers without sign", bits.astype(np.float64)
