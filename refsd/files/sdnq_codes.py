"""SDNQ's codes: the types that it names, and how codes of 1 to 15 bits are packed.

int2 .. int16, uint1 .. uint16   whole numbers; packed ones stand 2^(bits - 1) too high if they have a sign
float6_e3m2fn, float5_e2m3fnu    sign (none with "fnu"), exponent and mantissa, subnormal numbers; no infinities,
                                 no NaN. fp6 and ufp5 are these
float8_e4m3fn, float16, ..       as torch has them
Source: sdnq 0.2.8, common.py, packed_int/unpack.py, packed_float.py.
"""

import math
import re
from typing import NamedTuple

import numpy as np

from refsd.numerics.tensor import SCALAR_TYPES

DTYPES = {**SCALAR_TYPES, "u16": np.dtype(np.uint16)}
_NATIVE = {f"{u}int{bits}": f"{u or 'i'}{bits}" for u in ("", "u") for bits in (8, 16)}
_NATIVE |= {"float8_e4m3fn": "f8_e4m3", "float8_e5m2": "f8_e5m2"}
_NATIVE |= {"float16": "f16", "bfloat16": "bf16", "float32": "f32"}
_SHORT = {"bool": "uint1", "int1": "uint1", "fp1": "float1_e1m0fnu", "bf16": "bfloat16"}
_SHORT |= {"fp8": "float8_e4m3fn", "fp16": "float16", "fp32": "float32"}
_INTEGER = re.compile(r"(u?)int(\d{1,2})")
_FLOAT = re.compile(r"float(\d{1,2})_e([1-5])m(\d{1,2})fn(u?)(?:_sdnq)?")
_SHORT_FLOAT = re.compile(r"(u?)fp(\d{1,2})")
_EXPONENTS = ((3, 1), (5, 2), (7, 3), (9, 4), (16, 5))  # bits of fp2 .. fp16, up to which -> bits of their exponent

# The first words of a group hold a code each, in their lowest bits. The other codes of the group lie in the bits
# that are left: of each code, from its lowest bit on, (word, first bit, bits).
_REST: dict[int, list[list[tuple[int, int, int]]]] = {
    **{bits: [[(0, first, bits)] for first in range(bits, 8, bits)] for bits in (1, 2, 4)},
    3: [*([(j, 3, 3)] for j in range(3)), [(0, 6, 2), (2, 6, 1)], [(1, 6, 2), (2, 7, 1)]],
    5: [[(0, 5, 3), (3, 5, 2)], [(1, 5, 3), (4, 5, 2)], [(2, 5, 3), (4, 7, 1), (3, 7, 1)]],
    9: [[(j, 9, 7), (8, 2 * j, 2)] for j in range(8)],
    10: [[(0, 10, 6), (3, 10, 4)], [(1, 10, 6), (4, 10, 4)], [(2, 10, 6), (4, 14, 2), (3, 14, 2)]],
    11: [
        *([(j, 11, 5), (8 + j % 3, 6 * (j // 3), 6)] for j in range(6)),
        *([(6 + j, 11, 5), (8 + j, 12, 4), (10, 12 + 2 * j, 2)] for j in range(2)),
    ],
    13: [[*((j + 3 * k, 13, 3) for k in range(4)), (12, 13 + j, 1)] for j in range(3)],
    **{
        bits: [[(word, bits, left) for word in reversed(range(bits // left))]]
        for bits, left in ((6, 2), (7, 1), (12, 4), (14, 2), (15, 1))
    },
}


class CodeType(NamedTuple):
    """A type of codes.

    bits:     of a code
    stored:   types of the tensor that holds it
    unsigned: the layer has zero points
    packed:   the tensor's shape is not the matrix'
    lowest:   the number of code 0, if codes are whole numbers
    values:   float32 [2^bits], the value of each code; None: codes are numbers
    """

    bits: int
    stored: tuple[str, ...]
    unsigned: bool
    packed: bool = False
    lowest: int = 0
    values: np.ndarray | None = None

    @property
    def is_index(self) -> bool:
        """Whether codes may be those of a codebook."""
        return self.unsigned and self.values is None

    def numbers(self, words: np.ndarray) -> np.ndarray:
        """Return the number of each code. words: of a stored type -> flat if they are packed"""
        codes = unpacked(words, self.bits) if self.packed else words
        if self.values is not None:
            return self.values[codes.view(f"u{codes.itemsize}")]
        return codes if not self.lowest else codes.astype(np.int16) + np.int16(self.lowest)


def code_type(name: object) -> CodeType | None:
    """Return the type that a config names; None if refsd does not know it."""
    name = _SHORT.get(name, name) if isinstance(name, str) else ""
    if name in _NATIVE:
        stored = _NATIVE[name]
        return CodeType(8 * DTYPES[stored].itemsize, (stored,), stored.startswith("u"))
    if found := _INTEGER.fullmatch(name):
        unsigned, bits = found[1] == "u", int(found[2])
        lowest = 0 if unsigned else -(2**bits // 2)
        return CodeType(bits, _stored(bits), unsigned, True, lowest) if bits in _REST else None
    if found := _SHORT_FLOAT.fullmatch(name):
        unsigned, bits = found[1] == "u", int(found[2])
        exponent = next((e for most, e in _EXPONENTS if bits <= most), 0)
        mantissa = bits - exponent - (not unsigned)
    elif found := _FLOAT.fullmatch(name):
        bits, exponent, mantissa, unsigned = int(found[1]), int(found[2]), int(found[3]), found[4] == "u"
    else:
        return None
    if bits not in (*_REST, 8, 16) or mantissa < 0 or bits != exponent + mantissa + (not unsigned):
        return None
    return CodeType(bits, _stored(bits), unsigned, bits in _REST, 0, _floats(exponent, mantissa, unsigned))


def word_bits(bits: int) -> int:
    """Return the bits of a word that packed codes of so many bits are in, the upper ones of an i64 apart."""
    return 8 if bits < 8 else 16


def _stored(bits: int) -> tuple[str, ...]:
    return ("i64", "u8") if bits == 1 else ("u8",) if bits <= 8 else ("i16", "u16")


def _floats(exponent: int, mantissa: int, unsigned: bool) -> np.ndarray:
    """Return the value of each code of a float. -> float32 [2^bits]"""
    code = np.arange(2 ** (exponent + mantissa))
    e, fraction = code >> mantissa, code % 2**mantissa / 2**mantissa
    y = np.ldexp(fraction + (e > 0), np.maximum(e, 1) - (2 ** (exponent - 1) - 1))
    return (y if unsigned else np.concatenate([y, -y]) + 0.0).astype(np.float32)  # -0 is 0


def unpacked(words: np.ndarray, bits: int) -> np.ndarray:
    """Unpack codes of 1 to 15 bits. words: whole groups of 8 or 16 bits a word -> unsigned, flat"""
    width, rest = word_bits(bits), _REST[bits]
    groups = words.astype(f"u{width // 8}").reshape(-1, math.lcm(width, bits) // width)
    count = groups.shape[1] * width // bits
    codes = np.zeros((len(groups), count), groups.dtype)
    first = count - len(rest)
    codes[:, :first] = groups[:, :first] & (2**bits - 1)
    for code, spans in enumerate(rest, first):
        at = 0
        for word, low, length in spans:
            codes[:, code] |= ((groups[:, word] >> low) & (2**length - 1)) << at
            at += length
    return codes.reshape(-1)
