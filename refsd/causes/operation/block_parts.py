"""Split quantized blocks into codes, scales and minimums, and put these together wrongly.

    y = d s_g (q_j - z) - dmin m_g

for a block with groups g of equal length. This is a second reader of the bytes (after ggml's ggml-common.h), into
plain arrays, so that a bug can change any one part: its sign, its order, its group, its value.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from refsd.causes.generic.orders import orders
from refsd.causes.operation.small_floats import SIGNED_LOWER_BYTE
from refsd.kernels.quant import BLOCK_TYPES
from refsd.numerics.tensor import StoredTensor


class Parts(NamedTuple):
    """The parts of n blocks with K elements in G groups each; float64 or integers.

    d:    [n, 1], scale of the scales;  s: [n, G], scales
    dmin: [n, 1], scale of the minimums, 0 where the type has none;  m: [n, G], minimums
    low:  [n, K], the lower bits of the codes;  bits: how many
    high: [n, K], their upper bits, 0 where there are none
    z:    subtracted from each code
    table: code -> value, for types that look their codes up; else ()
    """

    d: np.ndarray
    s: np.ndarray
    dmin: np.ndarray
    m: np.ndarray
    low: np.ndarray
    high: np.ndarray
    bits: int
    z: int
    table: tuple[int, ...] = ()

    def values(self, kind: type = np.float64) -> np.ndarray:
        """Return the values, [n, K], computed in that type."""
        q = self.low.astype(np.int64) | (self.high.astype(np.int64) << self.bits)
        q = np.asarray(self.table)[q] if self.table else q - self.z
        per = q.shape[1] // self.s.shape[1]
        wide = [np.repeat(np.asarray(t, kind), per, axis=1) for t in (self.d * self.s, self.dmin * self.m)]
        return wide[0] * q.astype(kind) - wide[1]


_LINEAR4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def _half(b: np.ndarray, at: int) -> np.ndarray:
    return b[:, at : at + 2].copy().view(np.float16).astype(np.float64)


def _nibbles(qs: np.ndarray, run: int) -> np.ndarray:
    """Unpack `run` bytes at a time: first the low, then the high nibbles. [n, bytes] -> [n, 2 bytes]"""
    pairs = qs.reshape(len(qs), -1, 1, run)
    return np.concatenate([pairs & 15, pairs >> 4], axis=2).reshape(len(qs), -1)


def _bits(field: np.ndarray, count: int) -> np.ndarray:
    """Unpack the lowest `count` bits, least significant first. [n, bytes] -> [n, count]"""
    return np.unpackbits(field.copy().view(np.uint8), axis=1, bitorder="little")[:, :count]


def _fields(b: np.ndarray, shifts: Any, width: int) -> np.ndarray:
    """Take `width` bits from `shifts` on. The topmost field needs no mask; it has the sign of a signed byte."""
    return np.where(np.asarray(shifts) + width == 8, b >> shifts, b >> shifts & 2**width - 1)


def _simple(d, low, high: Any = 0, bits=4, z=0, minimum: Any = 0.0, table=()) -> Parts:
    """Return the parts of blocks that have a single group."""
    one = np.ones((len(d), 1))
    return Parts(d, one, minimum + 0 * d, one, low, high + 0 * low, bits, z, table)


def _two_bits(qs: np.ndarray) -> np.ndarray:
    """Unpack 32 bytes at a time: bits 0 and 1, then 2 and 3, and so on. [n, 64] -> [n, 256]"""
    parts = _fields(qs.reshape(len(qs), 2, 1, 32), np.array([0, 2, 4, 6])[:, None], 2)
    return parts.reshape(len(qs), 256)


def _six_bits(b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Unpack the scales and minimums of Q4_K and Q5_K. -> [n, 8] each"""
    first, second, third = b[:, 4:8], b[:, 8:12], b[:, 12:16]
    s = np.concatenate([first & 63, (third & 15) | (first >> 6 << 4)], axis=1)
    m = np.concatenate([second & 63, (third >> 4) | (second >> 6 << 4)], axis=1)
    return s.astype(np.int64), m.astype(np.int64)


def _q3_k_scales(b: np.ndarray) -> np.ndarray:
    packed = b[:, 96:108].astype(np.int64)
    low = np.concatenate([packed[:, :8] & 15, packed[:, :8] >> 4], axis=1)
    high = np.concatenate([_fields(packed[:, 8:], shift, 2) for shift in (0, 2, 4, 6)], axis=1)
    return (low | high << 4) - 32


def _q2_k(b):
    low = _two_bits(b[:, 16:80])
    return Parts(_half(b, 80), b[:, :16] & 15, _half(b, 82), b[:, :16] >> 4, low, 0 * low, 2, 0)


def _q3_k(b):
    high = _fields(b[:, None, :32], np.arange(8)[:, None], 1).reshape(len(b), 256)
    none = np.zeros((len(b), 1))
    return Parts(_half(b, 108), _q3_k_scales(b), none, none + np.zeros((1, 16)), _two_bits(b[:, 32:96]), high, 2, 4)


def _q4_k(b):
    s, m = _six_bits(b)
    low = _nibbles(b[:, 16:144], 32)
    return Parts(_half(b, 0), s, _half(b, 2), m, low, 0 * low, 4, 0)


def _q5_k(b):
    s, m = _six_bits(b)
    low = _nibbles(b[:, 48:176], 32)
    high = _fields(b[:, None, 16:48], np.arange(8)[:, None], 1).reshape(len(b), 256)
    return Parts(_half(b, 0), s, _half(b, 2), m, low, high, 4, 0)


def _q6_k(b):
    low = _nibbles(b[:, :128], 64)
    high = _fields(b[:, 128:192].reshape(-1, 2, 1, 32), np.array([0, 2, 4, 6])[:, None], 2).reshape(len(b), 256)
    s, none = b[:, 192:208].view(np.int8).astype(np.int64), np.zeros((len(b), 1))
    return Parts(_half(b, 208), s, none, 0.0 * s, low, high, 4, 32)


def _iq4_xs(b):
    bits = b[:, 2:4].copy().view(np.uint16).astype(np.int64)
    low = np.stack([b[:, 4:8] & 15, b[:, 4:8] >> 4], axis=2).reshape(len(b), 8).astype(np.int64)
    s = (low | ((bits >> 2 * np.arange(8)) & 3) << 4) - 32
    codes = _nibbles(b[:, 8:136], 16)
    none = np.zeros((len(b), 1))
    return Parts(_half(b, 0), s, none, none + np.zeros((1, 8)), codes, 0 * codes, 4, 0, _LINEAR4)


_FP4 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


def _mxfp4(b):
    return _simple(np.ldexp(1.0, b[:, :1].astype(int) - 128), _nibbles(b[:, 1:17], 16), table=_FP4)


def _nvfp4(b):
    low, one = _nibbles(b[:, 4:36], 8), np.ones((len(b), 1))
    scales = b[:, :4].view(ml_dtypes.float8_e4m3fn).astype(np.float64) / 2
    return Parts(one, np.nan_to_num(np.abs(scales)), 0 * one, np.zeros((len(b), 4)), low, 0 * low, 4, 0, _FP4)


# Type -> number of bytes in front that are scales of 8 bits.
_BYTE_SCALES = {"mxfp4": 1, "nvfp4": 4}
# Type -> first byte of its codes, all bytes behind it being codes.
_CODES = {"q4_0": 2, "q4_1": 4, "q5_0": 6, "q5_1": 8, "q8_0": 2, "iq4_nl": 2, "mxfp4": 1, "nvfp4": 4, "q4_k": 16}


def _misread_bytes(type: str, blocks: np.ndarray, parts: Parts) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (name, values) with scales of 8 bits read as numbers, or with codes that begin at another byte."""
    if type in _BYTE_SCALES:
        raw = blocks[:, : _BYTE_SCALES[type]].astype(np.float64)
        for name, scale in (("byte as a number", raw), ("byte as a number over 256", raw / 256)):
            for twice in (1, 2):
                own = {"d": scale / twice} if raw.shape[1] == 1 else {"s": scale / twice}
                words = " of twice the unit" if twice == 1 else ""
                phrase = f"the scale's {name}, not as an exponent or a small float{words}"
                yield phrase, parts._replace(**own).values()
    first = _CODES.get(type, 0)
    for by in (by for by in (-4, -2, -1, 1, 2, 4) if first and first + by >= 0):
        moved = blocks.copy()
        moved[:, first:] = np.roll(blocks, -by, axis=1)[:, first:]
        read = _READ[type](moved)
        yield f"codes read from byte {first + by} on, not from byte {first}", read.values()


_READ: dict[str, Callable[[np.ndarray], Parts]] = {
    "q4_0": lambda b: _simple(_half(b, 0), _nibbles(b[:, 2:18], 16), z=8),
    "q4_1": lambda b: _simple(_half(b, 0), _nibbles(b[:, 4:20], 16), minimum=-_half(b, 2)),
    "q5_0": lambda b: _simple(_half(b, 0), _nibbles(b[:, 6:22], 16), _bits(b[:, 2:6], 32), z=16),
    "q5_1": lambda b: _simple(_half(b, 0), _nibbles(b[:, 8:24], 16), _bits(b[:, 4:8], 32), minimum=-_half(b, 2)),
    "q8_0": lambda b: _simple(_half(b, 0), b[:, 2:34].view(np.int8).astype(np.int64), bits=8),
    "iq4_nl": lambda b: _simple(_half(b, 0), _nibbles(b[:, 2:18], 16), table=_LINEAR4),
    "q2_k": _q2_k,
    "q3_k": _q3_k,
    "q4_k": _q4_k,
    "q5_k": _q5_k,
    "q6_k": _q6_k,
    "iq4_xs": _iq4_xs,
    "mxfp4": _mxfp4,
    "nvfp4": _nvfp4,
}


def parts_of(type: str, blocks: np.ndarray) -> Parts | None:
    """Split blocks [n, bytes] into parts; None for a type without a reader here."""
    read = _READ.get(type)
    return None if read is None else read(np.ascontiguousarray(blocks))


def wrong_values(tensor: StoredTensor) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (name, values) with one part of the blocks changed; nothing for a type without a reader here."""
    if tensor.type not in BLOCK_TYPES:
        return
    kind = BLOCK_TYPES[tensor.type]
    blocks = tensor.data.reshape(-1, kind.bytes)
    parts = parts_of(tensor.type, blocks)
    if parts is None:
        return
    right, wide = parts.values(), max(tensor.shape[-1] // kind.block, 1)
    changed = itertools.chain(
        _other_parts(parts), _signed_bytes(tensor.type, blocks, parts), _of_others(parts, wide)
    )
    values = lambda others: ((name, other.values()) for name, other in others)
    orders_of = _other_orders(parts), values(in_rows(tensor.type, blocks, parts)), _later(parts)
    with np.errstate(all="ignore"):
        for name, y in itertools.chain(_misread_bytes(tensor.type, blocks, parts), values(changed), *orders_of):
            if not np.array_equal(y, right):
                yield f"{tensor.type}: {name}", y.reshape(tensor.shape).astype(np.float32)


# Type -> first and last byte, and bits a code, of its lower and its higher bits.
LOW = {"q2_k": (16, 80, 2), "q3_k": (32, 96, 2), "q4_k": (16, 144, 4), "q5_k": (48, 176, 4), "q6_k": (0, 128, 4)}
LOW |= {"q4_0": (2, 18, 4), "q4_1": (4, 20, 4), "q5_0": (6, 22, 4), "q5_1": (8, 24, 4), "iq4_nl": (2, 18, 4)}
_HIGH = {"q3_k": (0, 32, 1), "q5_k": (16, 48, 1), "q6_k": (128, 192, 2)}


def in_a_row(blocks: np.ndarray, first: int, last: int, bits: int) -> np.ndarray:
    """Unpack codes that lie one behind the other, the lowest bits of a byte first."""
    return (blocks[:, first:last, None] >> np.arange(0, 8, bits) & 2**bits - 1).reshape(len(blocks), -1)


def in_rows(type: str, blocks: np.ndarray, p: Parts) -> Iterator[tuple[str, Parts]]:
    """Yield parts whose codes, or their lower or higher bits, lie one behind the other."""
    low = in_a_row(blocks, *LOW[type]) if type in LOW else p.low
    high = in_a_row(blocks, *_HIGH[type]) if type in _HIGH else p.high
    ways = {"codes": (low, high)} if type in LOW else {}
    if type in _HIGH:
        ways |= {"the lower bits of codes": (low, p.high), "the higher bits of codes": (p.low, high)}
    for words, (a, b) in ways.items():
        yield f"{words} are read one behind the other", p._replace(low=a, high=b)


def _of_others(p: Parts, wide: int) -> Iterator[tuple[str, Parts]]:
    """Yield parts with the scales, minimums or both of other blocks, or other groups'. wide: blocks of a row"""
    i, G = np.arange(len(p.d)), p.s.shape[1]
    blocks = {"of the block before": np.roll(i, 1), "of the next block": np.roll(i, -1)}
    blocks |= {f"of the first of each {k} blocks": i // k * k for k in (2, 4, 8)}
    blocks["of the block above"] = np.where(i < wide, i, i - wide)
    blocks["of the block below"] = np.where(i + wide < i.size, i + wide, i)
    blocks["read as if their array were transposed"] = i.reshape(-1, wide).T.ravel()
    blocks |= {f"of a row's blocks: {words}": i.reshape(-1, wide)[:, at].ravel() for words, at in orders(wide)}
    own, groups = np.repeat(np.arange(G), 2), {f"of groups: {words}": np.repeat(at, 2) for words, at in orders(G)}
    for apart in (n for n in (2, 4, 8) if G % n == 0):
        # Each half by its number, as if two halves of one were apart.
        halves = np.arange(2 * G) // (2 * apart) * apart + np.arange(2 * G) % apart
        groups[f"read by halves of groups, not by groups, in each {apart}"] = halves
    for ways, same, names, axis in ((blocks, i, ("d", "dmin"), 0), (groups, own, ("s", "m"), 1)):
        s, m = (getattr(p, name) for name in names)
        for words, at in ((words, at) for words, at in ways.items() if (at >= 0).all()):
            chosen = {"scales": (at, same)}
            if np.any(p.dmin * p.m):
                chosen |= {"minimums": (same, at), "scales and minimums": (at, at)}
            for what, (a, b) in chosen.items():
                yield (
                    f"{what} {words}",
                    p._replace(**dict(zip(names, (s.take(a, axis), m.take(b, axis)), strict=True))),
                )


def _other_parts(p: Parts) -> Iterator[tuple[str, Parts]]:
    has_minimum, has_high = bool(np.any(p.dmin)), bool(np.any(p.high))
    larger = ((f"{2**k} times too large", 2.0**k) for k in range(2, 11))  # as where an exponent's bits are changed
    for words, factor in (("flushed to zero", 0.0), ("halved", 0.5), ("doubled", 2.0), *larger):
        d, dmin = (np.where(np.abs(t) < 2.0**-14, factor * t, t) for t in (p.d, p.dmin))
        yield f"subnormal scales {words}", p._replace(d=d, dmin=dmin)
    yield "the scale without its sign", p._replace(d=np.abs(p.d))
    yield "the scale left out", p._replace(d=np.ones_like(p.d))
    half = np.asarray(p.d, np.float16)
    if np.array_equal(half, p.d):
        bits = half.view(np.uint16)
        yield "the scale's two bytes exchanged", p._replace(d=bits.byteswap().view(np.float16).astype(np.float64))
        yield "the scale's bits read as a bfloat16", p._replace(d=bits.view(ml_dtypes.bfloat16).astype(np.float64))
        yield "the scale's bits read as a whole number", p._replace(d=bits.astype(np.float64))
    if p.s.shape[1] > 1:
        yield "scales and minimums of the groups swapped", p._replace(s=p.m, m=p.s)
        yield "the groups' scales left out", p._replace(s=np.ones_like(p.s))
        if p.s.min() < 0:
            yield "the groups' scales read as unsigned", p._replace(s=np.where(p.s < 0, p.s + 256, p.s))
        yield "the groups' minimums left out", p._replace(m=0 * p.m)
    if has_minimum:
        yield "the minimum left out", p._replace(dmin=0 * p.dmin)
        yield "the minimum with the other sign (subtracted, not added, or the reverse)", p._replace(dmin=-p.dmin)
        yield "scale and minimum of the block swapped", p._replace(d=p.dmin, dmin=p.d)
        yield "minimum without its own scale: d for dmin", p._replace(dmin=p.d)
    if has_high:
        i, K = np.arange(p.high.shape[1]), p.high.shape[1]
        ways = {"the first half read for the second": i % (K // 2), "all in the reverse order": i[::-1]}
        for run in (run for run in (8, 16, 32, 64, 128) if K % run == 0):
            ways |= {f"neighbouring {run}s swapped": i ^ run} if K % (2 * run) == 0 else {}
            ways[f"the first {run} read for all"] = i % run
        yield "the high bits left out", p._replace(high=0 * p.high)
        yield "the high bits inverted", p._replace(high=p.high.max() - p.high)
        yield from ((f"the high bits of {words}", p._replace(high=p.high[:, at])) for words, at in ways.items())
        yield "the high bits one place too low", p._replace(high=0 * p.high, low=p.low | p.high << (p.bits - 1))
    if p.table:
        yield "codes as numbers less 8, not through the table", p._replace(table=(), z=8)
    for z in dict.fromkeys((0, p.z - 1, p.z + 1, p.z // 2, 2 * p.z, 8, 16, 32, 4, 128)):
        if not p.table and z != p.z:
            yield f"{z} taken from the codes, not {p.z}", p._replace(z=z)
    if p.bits == 8:
        yield "codes without their sign", p._replace(low=p.low & 127)
        yield "codes as unsigned bytes", p._replace(low=p.low & 255)


def _signed_bytes(type: str, blocks: np.ndarray, p: Parts) -> Iterator[tuple[str, Parts]]:
    """Yield parts that are shifted out of, or joined from, bytes with a sign, as Java's are and C's char may be."""
    read = _READ[type](np.ascontiguousarray(blocks).view(np.int8))
    some_of = lambda names: itertools.chain(*(itertools.combinations(names, n + 1) for n in range(len(names))))
    fields = {"codes": ("low", "high"), "the groups' scales": ("s",), "the groups' minimums": ("m",)}
    fields = {k: [n for n in names if (getattr(read, n) != getattr(p, n)).any()] for k, names in fields.items()}
    for chosen in some_of([words for words, names in fields.items() if names]):
        ours = {name: getattr(read, name) for words in chosen for name in fields[words]}
        yield f"{' and '.join(chosen)} shifted out of signed bytes: the topmost bit is a sign", p._replace(**ours)
    halves = {name: np.asarray(getattr(p, name), np.float16) for name in ("d", "dmin")}
    halves = {name: half for name, half in halves.items() if half.any() and (half == getattr(p, name)).all()}
    for chosen, (how, join) in itertools.product(some_of([*halves]), SIGNED_LOWER_BYTE.items()):
        joined = {n: join(halves[n].view(np.uint16)).view(np.float16).astype(np.float64) for n in chosen}
        yield f"{' and '.join(chosen)}: the {how}", p._replace(**joined)


def _other_orders(p: Parts) -> Iterator[tuple[str, np.ndarray]]:
    """Yield values with the codes permuted: alone, together with their scales, and only their lower bits."""
    q, K = p.low, p.low.shape[1]
    i = np.arange(K)
    ways = {"reversed": i[::-1], "halves swapped": np.roll(i, K // 2), "neighbours swapped": i ^ 1}
    for run in (32, 64, 128, 256):
        if K % run == 0:
            inside = i.reshape(-1, run)
            ways[f"halves of {run} interleaved"] = inside.reshape(-1, 2, run // 2).swapaxes(1, 2).ravel()
            ways[f"even and odd of {run} apart"] = inside.reshape(-1, run // 2, 2).swapaxes(1, 2).ravel()
            ways[f"halves of {run} swapped"] = inside.reshape(-1, 2, run // 2)[:, ::-1].ravel()
            if run >= 64:
                ways[f"quarters of {run} interleaved"] = inside.reshape(-1, 4, run // 4).swapaxes(1, 2).ravel()
                ways[f"every 4th of {run} together"] = inside.reshape(-1, run // 4, 4).swapaxes(1, 2).ravel()
    for name, order in ways.items():
        yield f"codes in another order: {name}", p._replace(low=q[:, order], high=p.high[:, order]).values()
        yield f"values in another order: {name}", p.values()[:, order]
        if np.any(p.high):
            yield f"lower bits in another order: {name}", p._replace(low=q[:, order]).values()


def _later(p: Parts) -> Iterator[tuple[str, np.ndarray]]:
    """Yield values with parts of each block missing or repeated, or rounded to float16."""
    y = p.values()
    K = y.shape[1]
    for count in dict.fromkeys((K // 2, K // 4, 3 * K // 4, K - 32, K - 16)):
        if 0 < count < K:
            phrase = f"only the first {count} of each {K} expanded, the others zero"
            yield phrase, np.where(np.arange(K) < count, y, 0)
    yield "the first half of each block twice", np.concatenate([y[:, : K // 2]] * 2, axis=1)
    yield "values computed in float16", p.values(np.float16).astype(np.float64)
    yield "values rounded to float16", y.astype(np.float16).astype(np.float64)
    scale = (p.d * p.s).astype(np.float16).astype(np.float64)
    minimum = (p.dmin * p.m).astype(np.float16).astype(np.float64)
    one = np.ones_like(p.d)
    yield "scales times their scale rounded to float16", p._replace(d=one, s=scale, dmin=one, m=minimum).values()
