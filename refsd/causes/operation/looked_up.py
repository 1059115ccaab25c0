"""Find which rows of a table an engine looked up in place of the right ones."""

from collections.abc import Callable, Iterator

import numpy as np

from refsd.golden.operation import Inputs, Operation, Params

_MOST = 1 << 24
_NEAR = 1e-3
_LISTED = 3
# What an engine may have made of an id, of a table with V rows.
_MADE: dict[str, Callable[[np.ndarray, int], np.ndarray]] = {
    "one more": lambda ids, V: ids + 1,
    "one less": lambda ids, V: ids - 1,
    "counted from the end": lambda ids, V: V - 1 - ids,
    "halved": lambda ids, V: ids // 2,
    "doubled": lambda ids, V: 2 * ids,
    "in the other half of the table": lambda ids, V: (ids + V // 2) % V,
    "in the first half of the table": lambda ids, V: ids % max(V // 2, 1),
    "at most half the table's length": lambda ids, V: np.minimum(ids, V // 2),
    "below 256 (8 bits)": lambda ids, V: ids & 255,
    "below 65536 (16 bits)": lambda ids, V: ids & 65535,
}


def looked_up(op: Operation, inputs: Inputs, params: Params, found: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (phrase, the rows that were looked up) if each row of the answer is one of the table."""
    if op.name != "embedding" or not np.isfinite(found).all():
        return
    table, ids = inputs["weight"].values().astype(np.float64), inputs["ids"].values()
    rows = found.reshape(-1, table.shape[1]).astype(np.float64)
    if len(rows) * len(table) > _MOST or not len(rows):
        return
    square = (table**2).sum(axis=1)
    read = np.argmin(square - 2 * rows @ table.T, axis=1)
    if np.linalg.norm(table[read] - rows) > _NEAR * np.linalg.norm(rows):
        return
    right = ids.ravel().astype(np.int64)
    same = np.flatnonzero((table[read] == table[right]).all(axis=1))
    read[same] = right[same]
    if not np.array_equal(read, right):
        yield _told(read, right, len(table)), table[read].reshape(found.shape).astype(np.float32)


def _told(read: np.ndarray, right: np.ndarray, V: int) -> str:
    for words, made in _MADE.items():
        if np.array_equal(read, np.clip(made(right, V), 0, V - 1)):
            return f"other rows of the table are looked up: ids {words}"
    wrong = np.flatnonzero(read != right)
    pairs = dict.fromkeys(f"{read[i]} for {right[i]}" for i in wrong)
    more = f" and {len(pairs) - _LISTED} more" if len(pairs) > _LISTED else ""
    return f"other rows of the table are looked up: {', '.join(list(pairs)[:_LISTED])}{more}"
