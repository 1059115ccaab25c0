"""Find codes of a block that an engine reads in another layout, under any scales, and other entries of a grid."""

from collections.abc import Iterator

import numpy as np

from refsd.causes.operation.block_parts import parts_of
from refsd.kernels.quant import BLOCK_TYPES
from refsd.numerics.tensor import GROUPED_TYPES, StoredTensor

Named = Iterator[tuple[str, np.ndarray]]

_NEAR, _FEW_ZEROS = 1e-5, 0.25
# Type -> first and last byte, and bits a code, of its lower and its higher bits.
_LOW = {"q2_k": (16, 80, 2), "q3_k": (32, 96, 2), "q4_k": (16, 144, 4), "q5_k": (48, 176, 4), "q6_k": (0, 128, 4)}
_LOW |= {"q4_0": (2, 18, 4), "q4_1": (4, 20, 4), "q5_0": (6, 22, 4), "q5_1": (8, 24, 4), "iq4_nl": (2, 18, 4)}
_HIGH = {"q3_k": (0, 32, 1), "q5_k": (16, 48, 1), "q6_k": (128, 192, 2)}


def _in_a_row(blocks: np.ndarray, first: int, last: int, bits: int) -> np.ndarray:
    """Unpack codes that lie one behind the other, the lowest bits of a byte first."""
    return (blocks[:, first:last, None] >> np.arange(0, 8, bits) & 2**bits - 1).reshape(len(blocks), -1)


def other_layouts(tensor: StoredTensor, actual: np.ndarray) -> Named:
    """Yield (phrase, values) with codes that lie in a row, under the right scales, else under any."""
    if tensor.type not in _LOW:
        return
    blocks = tensor.data.reshape(-1, BLOCK_TYPES[tensor.type].bytes)
    p = parts_of(tensor.type, blocks)
    assert p is not None
    low = _in_a_row(blocks, *_LOW[tensor.type])
    high = _in_a_row(blocks, *_HIGH[tensor.type]) if tensor.type in _HIGH else p.high
    ways = {"codes": (low, high)}
    if tensor.type in _HIGH:
        ways |= {"the lower bits of codes": (low, p.high), "the higher bits of codes": (p.low, high)}
    kept = {f"{words} are read one behind the other": p._replace(low=a, high=b) for words, (a, b) in ways.items()}
    yield from ((f"{tensor.type}: {words}", q.values().reshape(tensor.shape)) for words, q in kept.items())
    y = np.asarray(actual, np.float64).reshape(len(blocks), p.s.shape[1], -1)
    for words, q in {**kept, "codes are the right ones": p}.items():
        one = np.ones_like(p.s, np.float64)
        codes = q._replace(d=one[:, :1], s=one, dmin=0 * one[:, :1], m=one).values().reshape(y.shape)
        centre = codes.mean(-1, keepdims=True) * bool(np.any(p.dmin))
        around = y - y.mean(-1, keepdims=True) * bool(np.any(p.dmin))
        square = ((codes - centre) ** 2).sum(-1, keepdims=True)
        scale = ((codes - centre) * around).sum(-1, keepdims=True) / np.where(square, square, 1)
        fitted = scale * (codes - centre) + y - around
        plain = words in kept and np.allclose(q.values().reshape(y.shape), y, rtol=_NEAR)
        if not plain and np.mean(scale == 0) < _FEW_ZEROS and np.abs(fitted - y).max() <= _NEAR * np.abs(y).max():
            yield f"{tensor.type}: {words}, each group's scale is another", fitted.reshape(tensor.shape)


# Type -> first byte and count of its indices' low bytes; first byte, and bits each, of the rest; a row's length.
_GRIDS = {"iq3_s": (2, 64, 66, 1, 4), "iq2_s": (2, 32, 66, 2, 8), "iq3_xxs": (2, 64, 0, 0, 4)}


def grid_entries(tensor: StoredTensor, actual: np.ndarray) -> Named:
    """Yield (phrase, values) where entries of the grid are others, by the same factor wherever they occur."""
    if tensor.type not in _GRIDS or tensor.type in GROUPED_TYPES:
        return
    first, count, more, bits, length = _GRIDS[tensor.type]
    kind = BLOCK_TYPES[tensor.type]
    blocks = tensor.data.reshape(-1, kind.bytes)
    rows = blocks[:, first : first + count].astype(int)
    if bits:
        rows = rows | _in_a_row(blocks, more, more + count * bits // 8, bits).astype(int) << 8
    entry = (rows[..., None] * length + np.arange(length)).ravel()
    right = np.asarray(kind.dequantize(blocks), np.float64).ravel()
    y = np.asarray(actual, np.float64).ravel()
    square = np.bincount(entry, right**2)
    factor = np.bincount(entry, right * y) / np.where(square, square, 1)
    other = np.flatnonzero((square > 0) & (np.abs(factor - 1) > _NEAR))
    read = right * np.where(np.isin(entry, other), factor[entry], 1)
    if 0 < len(other) < np.count_nonzero(square) / 2 and np.allclose(read, y, rtol=_NEAR, atol=0):
        ratios = ", ".join(f"{f:.5g}" for f in np.unique(np.round(factor[other], 6))[:3])
        phrase = f"{tensor.type}: {len(other)} entries of its grid are {ratios} times the right ones"
        yield phrase, read.reshape(tensor.shape)
