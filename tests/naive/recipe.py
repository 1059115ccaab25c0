"""The recipe specification (golden/README.md) in plain integers and fractions, an element at a time."""

import math
from fractions import Fraction

MASK = 0xFFFFFFFF


def philox(counter: list[int], key: list[int]) -> list[int]:
    (x0, x1, x2, x3), (k0, k1) = counter, key
    for _ in range(10):
        a, b = 0xD2511F53 * x0, 0xCD9E8D57 * x2
        x0, x1, x2, x3 = b // 2**32 ^ x1 ^ k0, b % 2**32, a // 2**32 ^ x3 ^ k1, a % 2**32
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return [x0, x1, x2, x3]


def fnv1a(name: str) -> int:
    key = 14695981039346656037
    for byte in name.encode("utf-8"):
        key ^= byte
        key = key * 1099511628211 % 2**64
    return key


def word(name: str, seed: int, k: int) -> int:
    """Word k of the stream."""
    block, key = k // 4, fnv1a(name)
    return philox([block & MASK, block >> 32, seed & MASK, seed >> 32], [key & MASK, key >> 32])[k % 4]


def draw(data: str, w0: int, w1: int, channel: int, n: int) -> tuple[int, int]:
    bell = w0 % 65536 + w0 // 65536 + w1 % 65536 + w1 // 65536 - 131070
    return {
        "bell": (bell, 0),
        "integers": (9 * w0 // 2**32 - 4, 0),
        "outliers": (bell, 6 if channel % 7 == 3 else 0),
        "wide": (w0 % 65536 - w0 // 65536, 25 * w1 // 2**32 - 12),
        "positive": (bell + 131071, 0),
        "tiny": (bell, -9),
        "shifted": (bell + 2**23, 0),
        "constant": (0, 0),
        "masked": (bell, 0),
        "late": (bell, 0),
        "token_ids": (n * w0 // 2**32, 0),
        "rows": (bell, 0),
        "prefix": (0, 0),
    }[data]


# type: bits of the significand, least exponent of a normal number
FLOATS = {"f32": (24, -126), "f16": (11, -14), "bf16": (8, -126)}


def rounded(x: Fraction, type_name: str) -> Fraction:
    """The nearest number of the type; of two equally near, the one with the even significand."""
    if type_name == "f64" or x == 0:
        return x
    if type_name[0] in "iu":
        return Fraction(round(x))
    bits, least = FLOATS[type_name]
    exponent = least
    while abs(x) >= Fraction(2) ** (exponent + 1):
        exponent += 1
    ulp = Fraction(2) ** (exponent - bits + 1)
    return round(x / ulp) * ulp


def hidden(name, shape, e, seed, n) -> bool:
    """Whether element e of a "masked" tensor is -infinity."""
    row, column = e // shape[-1], e % shape[-1]
    return (bool(n) and (row + 1) % n == 0) or (
        column != row % shape[-1] and word(name, seed, 2 * e) % 8 in (0, 1, 2)
    )


def element(name, shape, e, type="f32", data="bell", exponent=-15, offset=0, seed=0, n=0) -> Fraction | float:
    """Element e of the flattened tensor of a type whose elements stand alone."""
    if data == "late" and min(shape[-1] - 1, n * (e // shape[-1])) > e % shape[-1]:
        return float("-inf")
    if data == "masked" and hidden(name, shape, e, seed, n):
        return float("-inf")
    index, rest = [], e
    for size in reversed(shape):
        index.insert(0, rest % size)
        rest //= size
    channel = index[1] if len(shape) == 4 else index[-1]
    integer, shift = draw(data, word(name, seed, 2 * e), word(name, seed, 2 * e + 1), channel, n)
    if data == "rows":
        row = e // shape[-1]
        integer, shift = (0 if n and (row + 1) % n == 0 else integer), 6 * (row % 7 == 3)
    if data == "prefix":
        row, column = divmod(e, shape[-1])
        fewer = n * row if n >= 0 else -n * (math.prod(shape[:-1]) - 1 - row)
        integer = int(column < max(1, shape[-1] - fewer))
    value = integer * Fraction(2) ** (exponent + shift) + rounded(Fraction(offset), "f32")
    return rounded(rounded(value, "f32"), type)


def half(bits, field):
    """A float16's sign and mantissa with another exponent field."""
    sign, mantissa = bits >> 15, bits & 0x3FF
    if field < 1:
        field, mantissa = 0, (1024 + mantissa) // 2 ** (1 - field)
    return sign << 15 | field << 10 | mantissa


def block(name, b, size, fields, exponent, seed=0) -> bytes:
    """Block b of a block type of `size` bytes; fields: (offset, shift, kind) of each scale."""
    out = bytearray()
    for k in range(b * size, (b + 1) * size):
        out.append(word(name, seed, k // 4) >> 8 * (k % 4) & 0xFF)
    for at, shift, kind in fields:
        shift += exponent
        if kind == "f16":
            bits = half(int.from_bytes(out[at : at + 2], "little"), 15 + shift)
            out[at : at + 2] = bits.to_bytes(2, "little")
        elif kind == "f16 in pieces":
            bits = half(sum((out[at + 1 + 2 * k] // 16) << 4 * k for k in range(4)), 15 + shift)
            for k in range(4):
                out[at + 1 + 2 * k] = out[at + 1 + 2 * k] % 16 + (bits >> 4 * k) % 16 * 16
        elif kind == "e8m0":
            out[at] = 127 + shift - out[at] % 2
        else:
            out[at] = 8 * (7 + shift) + out[at] % 8
    return bytes(out)
