"""Statistics of a tensor's values, read in pieces so that memory stays bounded."""

import hashlib
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from refsd.kernels.quant import BLOCK_TYPES
from refsd.numerics.tensor import Grouping, StoredTensor

PIECE = 2**20  # elements expanded at a time
SAMPLE = 2**16  # elements of a tensor that are read if not all are
_STRETCHES = 4  # into which a sample is divided


class Statistics(NamedTuple):
    """What is known of a tensor's values; of a sample of them if `whole` is False.

    count:   values read
    bad:     NaN or infinite ones; the other fields leave them out
    low, high, mean, deviation: of the finite values
    zeros:   values that are exactly 0
    largest_code: for an 8-bit float without its scale the largest absolute value as stored; else 0
    digest:  hash of the bytes read
    whole:   whether all values were read
    """

    count: int
    bad: int
    low: float
    high: float
    mean: float
    deviation: float
    zeros: int
    largest_code: float
    digest: bytes
    whole: bool


def statistics(tensor: StoredTensor, sampled: bool) -> Statistics:
    """Read a tensor, or a sample of SAMPLE values of it, in pieces.

    Sums accumulate in float64.
    """
    digest = hashlib.blake2b(digest_size=16)
    count = bad = read = zeros = 0
    low, high, total, squares, code = math.inf, -math.inf, 0.0, 0.0, 0.0
    for piece in pieces(tensor, sampled):
        digest.update(np.ascontiguousarray(piece.data).view(np.uint8).data)
        values = np.asarray(piece.values(), np.float32).reshape(-1)
        read += values.size
        finite = np.isfinite(values)
        if not finite.all():
            bad += int(values.size - np.count_nonzero(finite))
            values = values[finite]
        if not values.size:
            continue
        wide = values.astype(np.float64)
        count += values.size
        zeros += int(values.size - np.count_nonzero(values))
        low, high = min(low, float(values.min())), max(high, float(values.max()))
        total += float(wide.sum())
        squares += float(wide @ wide)
        if piece.type.startswith("f8_") and piece.scaling is None:
            code = max(code, float(np.abs(values).max()))
    if not count:
        return Statistics(read, bad, 0.0, 0.0, 0.0, 0.0, 0, 0.0, digest.digest(), not sampled)
    mean, power = total / count, squares / count
    deviation = math.sqrt(max(0.0, power - mean * mean))
    whole = read >= math.prod(tensor.shape)
    return Statistics(read, bad, low, high, mean, deviation, zeros, code, digest.digest(), whole)


def pieces(tensor: StoredTensor, sampled: bool = False) -> Iterator[StoredTensor]:
    """Yield a tensor in flat pieces of at most about PIECE elements, or stretches of it that make a sample."""
    if isinstance(tensor.scaling, Grouping) or (tensor.scaling is not None and tensor.scaling.scale.size > 1):
        yield from _rows(tensor, sampled)
        return
    if tensor.scaling is not None and tensor.scaling.rotation:
        yield from _rows(tensor, sampled)
        return
    block = BLOCK_TYPES.get(tensor.type)
    units = tensor.data.reshape(-1, block.bytes) if block else tensor.data.reshape(-1)
    width = block.block if block else 1
    for start, end in _ranges(len(units), PIECE // width, SAMPLE // width if sampled else None):
        part = units[start:end]
        shape = ((end - start) * width,)
        yield StoredTensor(tensor.type, shape, part.reshape(-1), tensor.scaling)


def _rows(tensor: StoredTensor, sampled: bool) -> Iterator[StoredTensor]:
    rows, width = math.prod(tensor.shape[:-1]), max(1, tensor.shape[-1])
    for start, end in _ranges(rows, max(1, PIECE // width), max(1, SAMPLE // width) if sampled else None):
        yield tensor.rows(slice(start, end))


def _ranges(length: int, step: int, sample: int | None) -> Iterator[tuple[int, int]]:
    if sample is None or length <= sample:
        yield from ((start, min(length, start + step)) for start in range(0, length, step))
        return
    stretch = max(1, sample // _STRETCHES)
    for i in range(_STRETCHES):
        start = (length - stretch) * i // (_STRETCHES - 1)
        yield start, start + stretch
