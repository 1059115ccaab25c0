"""Find what a tensor's stored bytes show to be wrong: a hole of zeros, another type than the header says."""

import math
from collections.abc import Iterable, Iterator

import numpy as np

from refsd.diagnosis.values import Read, named
from refsd.golden.wording import counted
from refsd.numerics.printable import printable
from refsd.weights.culprits import Finding

_STEP = 512  # bytes that are looked at together
_EDGE = 64  # bytes by which a hole ends inside a row at least: zero rows are whole ones
_FEWEST = 1024  # zeros of a tensor below which no hole is sought
_SAMPLE = 2**13  # values that are looked at for the type
# Codes in a power of two. Half of a matrix's values lie within 1.5 to 4 powers of two: 8 times as many, or 8 times
# fewer, if the exponent is taken for the other type's. Bytes of bfloat16 are then above 0.3 (the code 0x34CD).
_EXPONENTS = {"f16": 1024, "bf16": 128}
_FAR, _CLOSE, _ONE_VALUE, _LEAST = 7.0, 0.5, 0.05, 0x34CD


def holes(read: Iterable[Read]) -> Iterator[Finding]:
    """Find zero bytes of two rows or more that begin or end inside a row: a part of a download that is missing."""
    for r in read:
        row = r.nbytes // r.shape[0] if len(r.shape) > 1 and r.shape[0] else 0
        if r.file is None or row <= 2 * _EDGE or r.of.zeros < _FEWEST:
            continue
        first, last = _longest_zeros(np.frombuffer(r.file.content, np.uint8, r.nbytes, r.start))
        inside = [_EDGE <= place % row <= row - _EDGE for place in (first, last)]
        if last - first > 2 * row and any(inside):
            text = (
                f"bytes {r.start + first} to {r.start + last} are zero, in the middle of {printable(r.name, 120)}: "
            )
            yield Finding("zero", f"{text}a part of the download is missing; download it again", (r.name,))


def _longest_zeros(content: np.ndarray) -> tuple[int, int]:
    """Return where the longest run of zero bytes begins and ends, sought in whole steps; (0, 0) for none."""
    whole = content[: len(content) // _STEP * _STEP].reshape(-1, _STEP)
    full = np.concatenate([[True], whole.any(1), [True]])
    ends = np.flatnonzero(full[1:] != full[:-1]).reshape(-1, 2)
    if not len(ends):
        return 0, 0
    start, stop = (int(place) * _STEP for place in max(ends, key=lambda run: run[1] - run[0]))
    before, after = np.flatnonzero(content[max(0, start - _STEP) : start]), np.flatnonzero(content[stop:][:_STEP])
    first = max(0, start - _STEP) + int(before[-1]) + 1 if len(before) else max(0, start - _STEP)
    return first, stop + (int(after[0]) if len(after) else len(content[stop:][:_STEP]))


def other_types(read: Iterable[Read]) -> list[Finding]:
    """Find matrices of float16 that the header calls bfloat16, and the reverse, by the spread of their values."""
    plain = [r for r in read if r.type in _EXPONENTS and r.file is not None]
    odd = [r for r in plain if len(r.shape) > 1 and math.prod(r.shape) > _FEWEST and _is_of_the_other(r)]
    if not odd:
        return []
    bytes_of = "float16" if odd[0].type == "bf16" else "bfloat16"
    text = f"{counted(len(odd), 'tensor')} of another type: {named(odd)} {'is' if len(odd) == 1 else 'are'} "
    text += f"{odd[0].type} by the header, {bytes_of} by the bytes: values deviate by {odd[0].of.deviation:.2g}"
    return [Finding("type", f"{text}; write the right type, or export it again", tuple(r.name for r in odd))]


def _is_of_the_other(r: Read) -> bool:
    """Tell from a sample: weights lie within a few powers of two, but not if mantissa bits are read as exponent."""
    assert r.file is not None
    every = np.frombuffer(r.file.content, np.uint16, r.nbytes // 2, r.start)
    sample = every[max(0, len(every) - _SAMPLE) // 2 :][:_SAMPLE].astype(np.int32)
    codes = sample[sample & 0x7FFF > 0] & 0x7FFF
    if len(codes) < _FEWEST:
        return False
    low, high = np.quantile(codes, (0.25, 0.75))
    spread = (high - low) / _EXPONENTS[r.type]
    if r.type == "bf16":
        return bool(spread > _FAR)
    # A table of scales near 1 lies as close, but has one sign.
    return bool(_ONE_VALUE < spread < _CLOSE and low > _LEAST and 0.25 < np.mean(sample >= 0x8000) < 0.75)
