"""Find right numbers in wrong places: axes exchanged, and slices of an axis that are other slices of the truth."""

from collections.abc import Iterator
from itertools import permutations
from typing import NamedTuple

import numpy as np

from refsd.causes.generic.error_places import axis_name, index_set
from refsd.golden.evidence import Evidence

# Match slices by _SUMS sums with random signs, if each has at least _LONG elements and there are at most _MOST.
_SUMS = 4
_LONG = 8
_MOST = 8192
_NEAREST = 32
# In a smaller array some arrangement fits any error.
_LEAST = 8
_LISTED = 6
_STEPS = 65


class Arrangement(NamedTuple):
    """A rearrangement of the truth that gives found.

    phrase: in words
    source: flat indices into the truth, of found's shape; -1 where found is something else
    """

    phrase: str
    source: np.ndarray


def moved(evidence: Evidence, channel: int) -> Arrangement | None:
    """Find exchanged axes; else slices along one axis that are other slices of the truth."""
    along = (rearranged(evidence, axis, channel) for axis in range(evidence.truth.ndim))
    return stored_in_another_order(evidence, channel) or next(filter(None, along), None)


def neighbour_at_an_end(evidence: Evidence, channel: int) -> str | None:
    """Say that the last or the first slice of an axis is a copy of its neighbour, if that is all of the error."""
    for axis, n in enumerate(evidence.truth.shape):
        i, name = np.arange(n), axis_name(axis, channel, evidence.truth.ndim)
        for words, g in (("last", np.minimum(i, n - 2)), ("first", np.maximum(i, 1))) if n > 2 else ():
            if evidence.truth.size >= _LEAST and _verified(evidence, axis, g) is not None:
                return f"the {words} of {name} is a copy of its neighbour"
    return None


def stored_in_another_order(evidence: Evidence, channel: int) -> Arrangement | None:
    """Find exchanged axes: the truth transposed, or its flat data read with the axes in another order."""
    shape = evidence.truth.shape
    if evidence.truth.size < _LEAST or sum(n > 1 for n in shape) < 2:
        return None
    flat, tried = np.arange(evidence.truth.size).reshape(shape), set()
    for order in _orders(shape):
        turned = tuple(shape[a] for a in order)
        # Found's flat data is truth.transpose(order); or the truth's flat data is taken for a tensor of the turned
        # shape, whose axes are then transposed back.
        views = flat.transpose(order), flat.reshape(turned).transpose(np.argsort(order))
        for read, view in enumerate(views):
            source = view.flat[evidence.sample]
            if source.tobytes() in tried:
                continue
            tried.add(source.tobytes())
            where = view.reshape(shape) if evidence.may_fit(source) else None
            if where is not None and evidence.fits(evidence.truth.ravel()[where]):
                return Arrangement(_order_phrase(order, shape, bool(read), channel), where)
    return None


def rearranged(evidence: Evidence, axis: int, channel: int) -> Arrangement | None:
    """Find slices along one axis that are other slices of the truth."""
    n = evidence.truth.shape[axis]
    if n < 2 or evidence.truth.size < _LEAST:
        return None
    name = axis_name(axis, channel, evidence.truth.ndim)
    for phrase, g in _usual(n):
        found = _verified(evidence, axis, g)
        if found is not None:
            return Arrangement(f"{name} is {phrase}", found)
    g = _matched(evidence, axis)
    if g is None:
        return None
    source = _verified(evidence, axis, g)
    if source is None:
        return None
    phrase = _phrase(g, name)
    return Arrangement(phrase, source) if phrase else None


def _orders(shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield every order of the axes except their own, exchanges of two first."""
    axes = range(len(shape))
    yield from sorted(
        (p for p in permutations(axes) if p != tuple(axes)), key=lambda p: sum(a != b for a, b in enumerate(p))
    )


def _order_phrase(order: tuple[int, ...], shape: tuple[int, ...], read: bool, channel: int) -> str:
    moved = [a for a, b in enumerate(order) if a != b]
    if len(moved) == 2 and shape[moved[0]] == shape[moved[1]]:
        return f"axes {moved[0]} and {moved[1]} are exchanged"
    letters = "NCHW" if len(shape) == 4 and channel % 4 == 1 else [f"axis {a}" for a in range(len(shape))]
    text = f"[{', '.join(letters[a] for a in order)}]"
    if read:
        return f"it is the truth's flat data read as {text}"
    return f"flat, it is the truth stored as {text}"


def _usual(n: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yield named arrangements of n slices, with the slice that each place holds; -1: something else."""
    i = np.arange(n)
    yield "reversed", i[::-1]
    if n % 2 == 0 and n > 2:
        yield "its second half, then its first", (i + n // 2) % n
        yield "itself with neighbours exchanged in pairs", i ^ 1
        for run in range(2, n // 4 + 1 if n <= _MOST else 0):
            if n % (2 * run) == 0:
                yield f"itself with neighbouring runs of {run} exchanged", (i // run ^ 1) * run + i % run
        yield "its two halves interleaved (0, n/2, 1, ...)", i % 2 * (n // 2) + i // 2
        yield "its even indices, then its odd ones", i % (n // 2) * 2 + i // (n // 2)
    for width in range(3, n // 2 + 1 if n <= _MOST else 0):
        if n % width == 0 and n // width > 2:
            text = f"transposed inside, as {width} x {n // width}"
            yield text, i % width * (n // width) + i // width
    for k in (1, -1, 2, -2, 3, -3):
        if 2 * abs(k) < n:
            yield f"rolled by {k}", (i - k) % n
            yield f"shifted by {k}, its edge repeated", np.clip(i - k, 0, n - 1)
            side = "first" if k > 0 else "last"
            rest = f"{side} index is" if abs(k) == 1 else f"{side} {abs(k)} indices are"
            inside = np.where((i - k >= 0) & (i - k < n), i - k, -1)
            yield f"shifted by {k}, and its {rest} something else", inside


def _verified(evidence: Evidence, axis: int, g: np.ndarray) -> np.ndarray | None:
    """Return flat sources if found's slices are the truth's slices g, except where g is -1; else None."""
    shape = evidence.truth.shape
    stride = int(np.prod(shape[axis + 1 :], dtype=np.int64))
    n = shape[axis]
    known = np.flatnonzero(g >= 0)
    # With too many slices that are something else, found is not the truth rearranged.
    if known.size < n - max(n // 4, 1) or 2 * known.size < n:
        return None
    at = evidence.sample // stride % n
    sampled = g[at] >= 0
    source = evidence.sample + (np.where(sampled, g[at], at) - at) * stride
    actual, truth = evidence.actual.ravel(), evidence.truth.ravel()
    z = (actual[evidence.sample] - truth[source])[sampled]
    size = np.maximum(np.abs(actual[evidence.sample]), np.abs(truth[source]))[sampled]
    if not z.size or np.mean(np.abs(z) > 4 * evidence.tail * evidence.noise.of(size)) > 0.01:
        return None
    moved = known[g[known] != known]
    inside = tuple(moved if a == axis else slice(None) for a in range(len(shape)))
    if not moved.size or np.unique(np.take(evidence.truth, g[moved], axis).ravel()[:1000]).size < 3:
        return None
    if not evidence.fits(np.take(evidence.truth, g[moved], axis), inside):
        return None
    still = known[g[known] == known]
    outside = tuple(still if a == axis else slice(None) for a in range(len(shape)))
    if still.size and evidence.error[outside].max() > 4 * evidence.tail:
        return None
    flat = np.arange(evidence.truth.size).reshape(shape)
    whole = np.take(flat, np.where(g >= 0, g, 0), axis)
    lost = tuple(np.flatnonzero(g < 0) if a == axis else slice(None) for a in range(len(shape)))
    whole[lost] = -1
    return whole


def _matched(evidence: Evidence, axis: int) -> np.ndarray | None:
    """Match each slice of found to a slice of the truth, its own if possible; -1 if none matches."""
    n = evidence.truth.shape[axis]
    size = evidence.truth.size // n
    if size < _LONG or n > _MOST:
        return None
    signs = np.random.default_rng(2).choice([-1.0, 1.0], (size, _SUMS))
    actual, truth = (np.moveaxis(y, axis, 0).reshape(n, size) for y in (evidence.actual, evidence.truth))
    noise = np.sqrt((evidence.noise.of(np.abs(truth)) ** 2).sum(axis=1))
    one, other = actual @ signs, truth @ signs
    order = np.argsort(other[:, 0])
    near = np.searchsorted(other[order, 0], one[:, 0])[:, None] + np.arange(-_NEAREST // 2, _NEAREST // 2)
    near = np.concatenate([order[np.clip(near, 0, n - 1)], np.arange(n)[:, None]], axis=1)
    apart = np.abs(one[:, None] - other[near]).max(axis=2) / (noise[near] + noise[:, None])
    best = np.argmin(apart, axis=1)
    best = np.where(apart[:, -1] <= 6, near.shape[1] - 1, best)
    rows = np.arange(n)
    g = np.where(apart[rows, best] <= 6, near[rows, best], -1)
    return g if ((g >= 0) & (g != rows)).any() else None


def _phrase(g: np.ndarray, name: str) -> str | None:
    """Describe the sources of an axis's slices in words; a source of -1 may be any."""
    n, i = g.size, np.arange(g.size)
    known, moved = g >= 0, (g >= 0) & (g != i)
    but = ""
    if not known.all():
        lost = index_set(np.flatnonzero(~known), n, name)
        if lost is None:
            return None
        but = f", but for {lost}"
    shifts = (i - g)[known] % n
    if (shifts == shifts[0]).all():
        k = int(shifts[0]) if 2 * shifts[0] <= n else int(shifts[0]) - n
        verb = "shifted" if not known.all() else "rolled"
        return f"{name} is {verb} by {k}{but}"
    sources = np.unique(g[moved])
    if sources.size == 1:
        where = "all" if moved.sum() == n - 1 else index_set(np.flatnonzero(moved), n, name)
        what = f"index {int(sources[0])}"
        if where == "all":
            return f"every index of {name} is a copy of {what}{but}"
        return f"{where}: a copy of {what}{but}" if where else None
    for m in range(2, min(n, _STEPS)):
        for text, like in ((f"i // {m}", i // m), (f"{m} (i // {m})", i // m * m), (f"i mod {m}", i % m)):
            if np.array_equal(like[known], g[known]):
                return f"index i of {name} is the truth's {text}{but}"
    where = np.flatnonzero(moved)
    if moved.sum() == 2 and set(g[moved]) == set(where):
        return f"indices {int(where[0])} and {int(where[1])} of {name} are exchanged{but}"
    chunk = _chunk(g)
    if chunk > 1 and known.all() and n // chunk <= _LISTED:
        order = ", ".join(str(int(c)) for c in g[::chunk] // chunk)
        return f"{name} is its {n // chunk} chunks of {chunk} in the order {order}"
    pairs = ", ".join(f"{int(a)} is the truth's {int(g[a])}" for a in where[:_LISTED])
    more = f" and {where.size - _LISTED} more" if where.size > _LISTED else ""
    whole = known.all() and np.unique(g).size == n
    if not whole and where.size > _LISTED:
        return None
    return f"{name} is {'permuted' if whole else 'rearranged'}: {pairs}{more}{but}"


def _chunk(g: np.ndarray) -> int:
    """Return the size of the largest chunks that move as wholes."""
    n = g.size
    for size in range(n // 2, 1, -1):
        if n % size == 0:
            chunks = g.reshape(-1, size)
            if (chunks - chunks[:, :1] == np.arange(size)).all() and (chunks[:, 0] % size == 0).all():
                return size
    return 1
