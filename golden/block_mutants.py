"""Known bugs in reading quantized block types, for every operation that expands them."""

from collections.abc import Callable

import numpy as np

from refsd.golden.mutations import Wrong, answer
from refsd.golden.operation import Mutant
from refsd.golden.recipe import SCALE_FIELDS
from refsd.kernels.quant import BLOCK_TYPES
from refsd.numerics.tensor import SCALAR_TYPES, stored


def other_blocks(name: str, change: Callable[[str, np.ndarray], np.ndarray | None]) -> Wrong:
    """Replace the bytes uint8 [n, block bytes] of a block-type input; None from `change` leaves a type alone."""

    def wrong(op, inputs, params):
        tensor = inputs[name]
        if tensor.type in SCALAR_TYPES:
            return None
        blocks = tensor.data.reshape(-1, BLOCK_TYPES[tensor.type].bytes).copy()
        changed = change(tensor.type, blocks)
        if changed is None:
            return None
        return answer(op, {**inputs, name: tensor._replace(data=changed.reshape(-1))}, params)

    return wrong


_NIBBLES = {
    "q4_0": 2,
    "q4_1": 4,
    "q5_0": 6,
    "q5_1": 8,
    "q4_k": 16,
    "q5_k": 48,
    "iq4_nl": 2,
    "iq4_xs": 8,
    "mxfp4": 1,
    "nvfp4": 4,
}


def swapped_nibbles(type: str, blocks: np.ndarray) -> np.ndarray | None:
    quants = _NIBBLES.get(type)
    if quants is None:
        return None
    blocks[:, quants:] = blocks[:, quants:] << 4 | blocks[:, quants:] >> 4
    return blocks


def neighbours_scale(type: str, blocks: np.ndarray) -> np.ndarray:
    field = SCALE_FIELDS[type][0]
    size = {"f16": 2, "f16 in pieces": 8}.get(field.kind, 1)
    scale = blocks[:, field.offset : field.offset + size]
    scale[:] = np.roll(scale, 1, axis=0)
    return blocks


def added_min(type: str, blocks: np.ndarray) -> np.ndarray | None:
    """Flip the sign of the second scale, which belongs to the minimums."""
    if len(SCALE_FIELDS[type]) != 2:
        return None
    blocks[:, SCALE_FIELDS[type][1].offset + 1] ^= 0x80
    return blocks


_HIGH_BITS = {
    "q5_0": (2, 6),
    "q5_1": (4, 8),
    "q3_k": (0, 32),
    "q5_k": (16, 48),
    "q6_k": (128, 192),
    "iq2_s": (66, 74),
    "iq3_s": (66, 74),
}


def missing_high_bits(type: str, blocks: np.ndarray) -> np.ndarray | None:
    at = _HIGH_BITS.get(type)
    if at is None:
        return None
    blocks[:, slice(*at)] = 0
    return blocks


def unsigned(type: str, blocks: np.ndarray) -> np.ndarray | None:
    """Read int8 quants without their sign bit."""
    if type != "q8_0":
        return None
    blocks[:, 2:] &= 0x7F
    return blocks


def packed_scales(type: str, blocks: np.ndarray) -> np.ndarray | None:
    """Drop the two upper bits of 6-bit scales (in q4_k and q5_k: of scales 4 to 7)."""
    if type in ("q4_k", "q5_k"):
        blocks[:, 4:12] &= 0x3F
    elif type == "iq4_xs":
        blocks[:, 2:4] = 0
    else:
        return None
    return blocks


def bits_from_the_top(type: str, blocks: np.ndarray) -> np.ndarray | None:
    """Read sign bits, or codes of 1 or 2 bits, from the other end of each byte."""
    at, width = _PACKED.get(type, ((), 0))
    if not width:
        return None
    chosen = blocks[:, slice(*at)]
    fields = [(chosen >> shift & (1 << width) - 1) << (8 - width - shift) for shift in range(0, 8, width)]
    chosen[:] = np.bitwise_or.reduce(fields)
    return blocks


# type: (first byte, one past the last), bits per field
_PACKED = {
    "iq2_s": ((34, 66), 1),
    "iq3_s": ((74, 106), 1),
    "q1_0": ((2, 18), 1),
    "tq2_0": ((0, 64), 2),
    "q2_0": ((2, 18), 2),
    "q2_k": ((16, 80), 2),
}


def other_shift(type: str, blocks: np.ndarray) -> np.ndarray | None:
    """Flip the sign of the 1/8 that IQ1 types add."""
    if type == "iq1_s":
        blocks[:, 35:50:2] ^= 0x80
    elif type == "iq1_m":
        blocks[:, 32:48] ^= 0x88
    else:
        return None
    return blocks


def raw_scale(type: str, blocks: np.ndarray, values: np.ndarray) -> np.ndarray | None:
    """Read the 16 bits of the first scale as an integer; keep what a second scale adds."""
    fields = SCALE_FIELDS[type]
    if type not in ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0"):
        return None
    at = fields[0].offset
    d = blocks[:, at : at + 2].copy().view(np.float16).astype(np.float64)
    minimum = 0.0
    if len(fields) > 1:
        minimum = blocks[:, fields[1].offset : fields[1].offset + 2].copy().view(np.float16).astype(np.float64)
    bits = blocks[:, at : at + 2].copy().view(np.uint16).astype(np.float64)
    return (values - minimum) / d * bits + minimum


def four_bit_scales(type: str, blocks: np.ndarray, values: np.ndarray) -> np.ndarray | None:
    """Read Q3_K's scales (6 bits, offset 32) as 4 bits with offset 8."""
    if type != "q3_k":
        return None
    packed = blocks[:, 96:108].astype(np.int64)
    low = np.concatenate([packed[:, :8] & 15, packed[:, :8] >> 4], axis=1)
    high = np.concatenate([packed[:, 8:] >> shift & 3 for shift in (0, 2, 4, 6)], axis=1)
    right = low + 16 * high - 32
    d = blocks[:, 108:110].copy().view(np.float16).astype(np.float64)
    codes = np.round(values.reshape(-1, 16, 16) / (np.where(right == 0, 1, right) * d)[..., None])
    # A scale of 0 hides the codes: read those from the bytes.
    codes = np.where((right == 0)[..., None], _q3_k_codes(blocks).reshape(-1, 16, 16), codes)
    return (codes * ((low - 8) * d)[..., None]).reshape(values.shape)


def _q3_k_codes(blocks: np.ndarray) -> np.ndarray:
    """Return the codes -4..3 [n, 256]: two bits, less 4 where the high bit is 0."""
    half = [blocks[:, 32 + 32 * h : 64 + 32 * h] >> 2 * p & 3 for h in range(2) for p in range(4)]
    bit = [blocks[:, :32] >> k & 1 for k in range(8)]
    return np.concatenate(
        [q.astype(np.int64) - 4 * (1 - b.astype(np.int64)) for q, b in zip(half, bit, strict=True)], 1
    )


def second_half_zero(type: str, blocks: np.ndarray, values: np.ndarray) -> np.ndarray | None:
    if values.shape[1] < 256:
        return None
    values[:, values.shape[1] // 2 :] = 0
    return values


def doubled(type: str, blocks: np.ndarray) -> np.ndarray | None:
    """Read the table of doubled codes without halving the scale."""
    if type == "mxfp4":
        blocks[:, 0] += 1
    elif type == "nvfp4":
        blocks[:, :4] += 8
    else:
        return None
    return blocks


def read_otherwise(name: str, change: Callable[[str, np.ndarray, np.ndarray], np.ndarray | None]) -> Wrong:
    """Expand a block-type input wrongly.

    change: type, bytes uint8 [n, block bytes], right values float64 [n, block] -> wrong values; None: no bug
    """

    def wrong(op, inputs, params):
        tensor = inputs[name]
        if tensor.type in SCALAR_TYPES:
            return None
        kind, right = BLOCK_TYPES[tensor.type], tensor.values().astype(np.float64)
        changed = change(tensor.type, tensor.data.reshape(-1, kind.bytes), right.reshape(-1, kind.block))
        if changed is None:
            return None
        with np.errstate(over="ignore"):
            values = stored(changed.reshape(right.shape).astype(np.float32))
        return answer(op, {**inputs, name: values}, params)

    return wrong


def other_values(name: str, change: Callable[[str, np.ndarray], np.ndarray | None]) -> Wrong:
    """Replace the values of a block-type input. change: type, float32 [blocks, block] -> values; None: no bug"""

    def wrong(op, inputs, params):
        tensor = inputs[name]
        if tensor.type in SCALAR_TYPES:
            return None
        values = tensor.values()
        changed = change(tensor.type, values.reshape(-1, BLOCK_TYPES[tensor.type].block).copy())
        return (
            None if changed is None else answer(op, {**inputs, name: stored(changed.reshape(values.shape))}, params)
        )

    return wrong


def no_eighth_sign(type: str, values: np.ndarray) -> np.ndarray | None:
    """Read seven of every eight signs and leave the eighth value positive."""
    if type not in ("iq2_xxs", "iq2_xs", "iq3_xxs"):
        return None
    values[:, 7::8] = np.copysign(values[:, 7::8], 1)
    return values


def first_trit_last(type: str, values: np.ndarray) -> np.ndarray | None:
    """Read the five ternary digits of each TQ1_0 byte from the other end."""
    if type != "tq1_0":
        return None
    values[:, :160] = values[:, :160].reshape(-1, 5, 32)[:, ::-1].reshape(-1, 160)
    return values


def other_float8(name: str) -> Wrong:
    """Read E4M3 as E5M2 and the reverse; NaN and infinity become 0."""
    pair = {"f8_e4m3": "f8_e5m2", "f8_e5m2": "f8_e4m3"}

    def wrong(op, inputs, params):
        tensor = inputs[name]
        if tensor.type not in pair:
            return None
        kind = pair[tensor.type]
        values = tensor._replace(type=kind, data=tensor.data.view(SCALAR_TYPES[kind])).values()
        return answer(op, {**inputs, name: stored(np.nan_to_num(values, posinf=0, neginf=0))}, params)

    return wrong


def no_subnormal_scale(type: str, blocks: np.ndarray) -> np.ndarray | None:
    """Read a scale that is a subnormal number as 0."""
    changed = blocks.copy()
    for offset, _, kind in SCALE_FIELDS.get(type, ()):
        if kind == "ue4m3":
            changed[:, offset][changed[:, offset] & 0x78 == 0] = 0
        elif kind == "f16":
            empty = changed[:, offset + 1] & 0x7C == 0
            changed[empty, offset] = changed[empty, offset + 1] = 0
    return changed


def signed_scale(type: str, blocks: np.ndarray) -> np.ndarray | None:
    """Read a scale's exponent as a signed byte: from 128 on it is next to 0."""
    if type != "mxfp4":
        return None
    changed = blocks.copy()
    changed[changed[:, 0] >= 128, 0] = 0
    return changed


def block_mutants(name: str) -> tuple[Mutant, ...]:
    return (
        Mutant("nibbles in the wrong order", other_blocks(name, swapped_nibbles)),
        Mutant("scale of the neighbouring block", other_blocks(name, neighbours_scale)),
        Mutant("min added, not subtracted", other_blocks(name, added_min)),
        Mutant("upper bits of the quants missing", other_blocks(name, missing_high_bits)),
        Mutant("quants without their sign", other_blocks(name, unsigned)),
        Mutant("upper bits of the packed scales missing", other_blocks(name, packed_scales)),
        Mutant("small fields from the top of their byte", other_blocks(name, bits_from_the_top)),
        Mutant("IQ1 shifted the other way", other_blocks(name, other_shift)),
        Mutant("4-bit floats doubled", other_blocks(name, doubled)),
        Mutant("the eighth sign left out", other_values(name, no_eighth_sign)),
        Mutant("ternary digits from the other end", other_values(name, first_trit_last)),
        Mutant("8-bit floats of the other kind", other_float8(name)),
        Mutant("the scale's bits taken for a number", read_otherwise(name, raw_scale)),
        Mutant("packed scales of four bits, not six", read_otherwise(name, four_bit_scales)),
        Mutant("the second half of each block zero", read_otherwise(name, second_half_zero)),
    )
