"""Find what an engine takes the codes of a quantized tensor for: the value of each code, fitted to its answer.

    y = d s f(q) - dmin m,  or  y = d g(s) q - dmin m

for a code q and its group's scale code s. Any mistake that depends on the code alone is another f or g: an entry of
a table, a limit, a sign, a bit that is lost. The codes of which f or g is not the right one are named. So are codes
that are read in another layout, under any scales, and other entries of a grid.
"""

from collections.abc import Iterator

import numpy as np

from refsd.causes.generic.orders import orders
from refsd.causes.operation.block_parts import LOW, in_a_row, in_rows, parts_of
from refsd.kernels.quant import BLOCK_TYPES
from refsd.numerics.tensor import GROUPED_TYPES, SCALAR_TYPES, StoredTensor

Named = Iterator[tuple[str, np.ndarray]]

_NEAR, _FEW_ZEROS = 1e-5, 0.25
_LISTED = 4


def code_values(tensor: StoredTensor, actual: np.ndarray) -> Named:
    """Yield (phrase, the tensor's values) where some codes are read as other values. actual: the engine's values"""
    y = np.asarray(actual, np.float64).ravel()
    with np.errstate(all="ignore"):
        for kind, codes, unit, offset, right in _readings(tensor):
            read = _fitted(codes, unit, y + offset, len(right))
            if read is None:
                continue
            wrong = np.flatnonzero(~np.isclose(read, right, rtol=_NEAR, atol=0, equal_nan=True) & ~np.isnan(read))
            predicted = np.where(np.isnan(read), right, read)[codes] * unit - offset
            if wrong.size and np.allclose(predicted, y, rtol=_NEAR, atol=_NEAR * np.abs(y).max(), equal_nan=True):
                text = ", ".join(f"{c} as {read[c]:g}, not {right[c]:g}" for c in wrong[:_LISTED])
                more = f" and {wrong.size - _LISTED} more" if wrong.size > _LISTED else ""
                yield f"{tensor.type}: {kind} read as other values: {text}{more}", predicted.reshape(tensor.shape)


def _readings(tensor: StoredTensor) -> Iterator[tuple[str, np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """Yield what codes mean in a tensor: kind, codes, unit, offset, f; y = unit f[codes] - offset, each flat."""
    none = np.zeros(1)
    if tensor.type in SCALAR_TYPES and SCALAR_TYPES[tensor.type].itemsize == 1:
        codes = np.ascontiguousarray(tensor.data).view(np.uint8).ravel().astype(np.int64)
        values = np.asarray(tensor.data, np.float64).ravel()
        right = np.zeros(256)
        right[codes] = values
        known = np.nan_to_num(values) != 0
        whole = np.asarray(tensor.values(), np.float64).ravel()
        scale = float(np.median(whole[known] / values[known])) if known.any() else 1.0
        yield "codes", codes, np.full(codes.shape, scale), none, right
        return
    if tensor.type not in BLOCK_TYPES or tensor.type in GROUPED_TYPES:
        return
    kind = BLOCK_TYPES[tensor.type]
    parts = parts_of(tensor.type, tensor.data.reshape(-1, kind.bytes))
    if parts is None:
        return
    q = parts.low.astype(np.int64) + (parts.high.astype(np.int64) << parts.bits)
    least = int(q.min())
    per = q.shape[1] // parts.s.shape[1]
    wide = [np.repeat(t * np.ones_like(parts.s, np.float64), per, axis=1) for t in (parts.d, parts.s)]
    offset = np.repeat(parts.dmin * parts.m * np.ones_like(parts.s, np.float64), per, axis=1).ravel()
    codes = np.arange(least, int(q.max()) + 1)
    value = np.asarray(parts.table, np.float64)[codes] if parts.table else (codes - parts.z).astype(np.float64)
    yield "codes", (q - least).ravel(), (wide[0] * wide[1]).ravel(), offset, value
    s = wide[1].astype(np.int64)
    if parts.s.shape[1] > 1 and np.array_equal(s, wide[1]):
        low = int(s.min())
        numbers = (wide[0] * value[q - least]).ravel()
        yield "codes of scales", (s - low).ravel(), numbers, offset, np.arange(low, int(s.max()) + 1.0)


def _fitted(codes: np.ndarray, unit: np.ndarray, wanted: np.ndarray, count: int) -> np.ndarray | None:
    """Return f with wanted = unit f[codes]; NaN for a code that does not occur, or is not finite."""
    clear = np.isfinite(wanted) & np.isfinite(unit) & (unit != 0)
    if clear.sum() < codes.size / 2:
        return None
    squares = np.bincount(codes[clear], unit[clear] ** 2, count)
    along = np.bincount(codes[clear], unit[clear] * wanted[clear], count)
    return np.where(squares > 0, along / squares, np.nan)


def other_layouts(tensor: StoredTensor, actual: np.ndarray) -> Named:
    """Yield (phrase, values) with the right codes, or codes that lie in a row, under any scales."""
    if tensor.type not in LOW:
        return
    blocks = tensor.data.reshape(-1, BLOCK_TYPES[tensor.type].bytes)
    p = parts_of(tensor.type, blocks)
    assert p is not None
    kept = dict(in_rows(tensor.type, blocks, p))
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
            same = np.allclose(scale[square > 0], (p.d * p.s)[..., None][square > 0], rtol=_NEAR)
            what = "minimum" if same and words not in kept else "scale"
            yield f"{tensor.type}: {words}, each group's {what} is another", fitted.reshape(tensor.shape)


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
        rows = rows | in_a_row(blocks, more, more + count * bits // 8, bits).astype(int) << 8
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


# Type of blocks -> first byte, and count, of its indices into a grid.
_INDICES = {"iq2_s": (2, 32), "iq3_xxs": (2, 64), "iq3_s": (2, 64), "iq1_s": (2, 32), "iq1_m": (0, 32)}


def other_indices(tensor: StoredTensor) -> Named:
    """Yield (name, values) with the bytes of grid indices read in another order, as from packed integers."""
    if tensor.type not in _INDICES:
        return
    start, count = _INDICES[tensor.type]
    blocks = tensor.data.reshape(-1, BLOCK_TYPES[tensor.type].bytes)
    i = np.arange(count)
    ways = {f"bytes of indices: {words}": at for words, at in orders(count) if (at >= 0).all()}
    ways |= {f"the bytes of each {run} indices in reverse order": i ^ (run - 1) for run in (2, 4, 8)}
    expand = BLOCK_TYPES[tensor.type].dequantize
    right = expand(blocks)
    for name, order in ways.items():
        changed = blocks.copy()
        changed[:, start : start + count] = blocks[:, start + order]
        y = expand(changed)
        if not np.array_equal(y, right):
            yield f"{tensor.type}: {name}", np.asarray(y, np.float32).reshape(tensor.shape)
