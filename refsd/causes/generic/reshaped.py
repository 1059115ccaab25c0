"""Find the truth in the order that a wrong reshape gives: an axis is split, and its parts stand elsewhere.

Heads taken for channels, a concatenation along another axis, patches whose rows come before their channels: each is
the right numbers, written or read with the axes of a view in another order.
"""

from collections.abc import Iterator
from itertools import combinations, product

import numpy as np

from refsd.causes.generic.moved_values import moved
from refsd.golden.evidence import Evidence

# An axis is split into so many parts, or into parts of so many.
_PARTS = (2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 64)
# In a smaller array some order fits any error.
_LEAST = 32
_MOST = 1 << 20

_Axes = tuple[tuple[int, int, int], ...]  # (axis of the truth, its part, length)


def other_order(evidence: Evidence, channel: int) -> str:
    """Say how the truth stands in another order throughout; "" if it does not."""
    found = moved(evidence, channel)
    if found is not None:
        return found.phrase if (found.source >= 0).all() else ""
    split = reshaped(evidence)
    return split[0] if split is not None else ""


def reshaped(evidence: Evidence) -> tuple[str, np.ndarray] | None:
    """Return (phrase, the truth in the order that gives found); None if no order of a split view does."""
    shape = evidence.truth.shape
    if not _LEAST <= evidence.truth.size <= _MOST or not evidence.finite or not _same_numbers(evidence):
        return None
    flat = np.arange(evidence.truth.size)
    for read in (None, *combinations(range(len(shape)), 2)):
        for view in _views(shape):
            for order in _orders(len(view)):
                if evidence.may_fit(_source(evidence.sample, shape, view, order, read)):
                    y = evidence.truth.ravel()[_source(flat, shape, view, order, read)].reshape(shape)
                    if evidence.fits(y):
                        return _phrase(view, order, read), y
    return None


def _same_numbers(evidence: Evidence) -> bool:
    """Return False if no order of the truth's numbers fits: sorted, both are as near as any order brings them."""
    actual, truth = (np.sort(y, axis=None) for y in (evidence.actual, evidence.truth))
    largest, noise = np.abs(np.append(actual, truth)).max(keepdims=True), evidence.noise
    most = 5 * evidence.tail * noise.of(largest).max(initial=noise.sizes.max())  # Evidence.fits allows 4
    return bool(np.abs(actual - truth).max() <= most)


def _views(shape: tuple[int, ...]) -> Iterator[_Axes]:
    """Yield the shape with one axis split in two."""
    for axis, n in enumerate(shape):
        for parts in dict.fromkeys(p for k in _PARTS for p in (k, n // k) if n % k == 0 and 1 < p < n):
            split = ((axis, 0, parts), (axis, 1, n // parts))
            yield tuple(one for a, m in enumerate(shape) for one in (split if a == axis else ((a, 0, m),)))


def _orders(n: int) -> list[tuple[int, ...]]:
    """Return the orders of n axes in which two are exchanged, or one stands elsewhere."""
    orders = []
    for i, j in product(range(n), repeat=2):
        exchanged, moved = list(range(n)), list(range(n))
        exchanged[i], exchanged[j] = j, i
        moved.insert(j, moved.pop(i))
        orders += [tuple(exchanged), tuple(moved)]
    return list(dict.fromkeys(orders))[1:]


def _source(
    at: np.ndarray, shape: tuple[int, ...], view: _Axes, order: tuple[int, ...], read: tuple[int, int] | None
) -> np.ndarray:
    """Return the flat index in the truth of each flat index of found.

    The truth is stored with the view's axes in this order; then it is read with the two axes `read` exchanged.
    """
    if read is not None:
        turned = list(range(len(shape)))
        turned[read[0]], turned[read[1]] = read[1], read[0]
        index = np.unravel_index(at, shape)
        at = np.ravel_multi_index([index[a] for a in turned], [shape[a] for a in turned])
    lengths = [n for *_, n in view]
    stored = np.unravel_index(at, [lengths[a] for a in order])
    return np.ravel_multi_index([stored[order.index(a)] for a in range(len(view))], lengths)


def _phrase(view: _Axes, order: tuple[int, ...], read: tuple[int, int] | None) -> str:
    twice = [axis for axis, part, _ in view if part == 1]

    def name(i: int) -> str:
        axis, part, n = view[i]
        return f"axis {axis}" + (f"'s {n} {'inner' if part else 'outer'}" if axis in twice else "")

    text = f"it is stored as [{', '.join(name(i) for i in order)}]"
    return text if read is None else f"{text}, and read with axes {read[0]} and {read[1]} exchanged"
