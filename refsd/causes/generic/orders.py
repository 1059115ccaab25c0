"""The orders in which bugs read an axis: reversed, the first tile for all; and rules by which they find entries."""

from collections.abc import Callable, Iterator, Mapping
from itertools import permutations, product

import numpy as np

from refsd.golden.cause_kinds import BLOCKS

# Devices that share an axis, and the parts that each takes of its share.
_SHARES = ((2, 2), (2, 3), (2, 4), (3, 2), (4, 2), (4, 3), (2, 6))


def orders(n: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (phrase, index that is read at each of n places); -1: zero."""
    i = np.arange(n)
    if n < 2:
        return
    yield "in reverse order", i[::-1]
    if n > 2:
        yield "in reverse order but for the last", np.append(i[-2::-1], n - 1)
        yield "in reverse order but for the first", np.append(0, i[:0:-1])
    yield "the first is read for all", 0 * i
    yield "the last is read for all", 0 * i + n - 1
    yield "the first slice alone is read", np.where(i == 0, i, -1)
    yield "the last slice alone is read", np.where(i == n - 1, i, -1)
    yield "the first slice is not read", np.where(i > 0, i, -1)
    yield "the last slice is not read", np.where(i < n - 1, i, -1)
    yield "the first is read for the last, too", i % (n - 1)
    yield "the last but one is read for the last, too", np.minimum(i, n - 2)
    for k in (k for k in (2, 4) if k < n and n % k == 0):
        yield f"the first of each {k} is read for all of them", i // k * k
    yield "each the one before", np.maximum(i - 1, 0)
    yield "each the next", np.minimum(i + 1, n - 1)
    yield "each the one before, in a circle", np.roll(i, 1)
    yield "each the next, in a circle", np.roll(i, -1)
    yield "each the one before, zero at the end", i - 1
    yield "each the next, zero at the end", np.append(i[1:], -1)
    if n % 2 == 0:
        half = n // 2
        yield "its parts in the other order, halves swapped", np.roll(i, half)
        yield "the first half is read twice", i % half
        yield "neighbours where halves belong together", i % 2 * half + i // 2
        yield "halves where neighbours belong together", i % half * 2 + i // half
        yield "neighbours swapped", i ^ 1
    for order in permutations(range(n)) if n in (3, 4) else ():
        if any((at - order[0]) % n != k for k, at in enumerate(order)):  # turns stand above
            yield f"in the order {', '.join(map(str, order))}", np.array(order)
    for parts in (3, 4, 5, 6, 8):
        if n % parts == 0:
            yield f"its parts in the other order, the first 1/{parts} last", np.roll(i, -n // parts)
            yield f"its parts in the other order, the last 1/{parts} first", np.roll(i, n // parts)
            yield f"its {parts} parts interleaved", i.reshape(parts, -1).T.ravel()
            yield f"every {parts}th together", i.reshape(-1, parts).T.ravel()
    for shares, parts in _SHARES:
        if n % (shares * parts) == 0 and n > shares * parts:
            order = i.reshape(shares, parts, -1).swapaxes(0, 1)
            text = ", ".join(str(k * shares * parts // n) for k in order[..., 0].ravel())
            cut = (
                "a patch's columns come before its rows"
                if shares == parts
                else f"{shares} devices cut their shares"
            )
            yield f"its parts in the order {text}, as where {cut}", order.ravel()


def tiles(n: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the same of blocks of the axis: the first again, the first alone, each as threads hold it."""
    i = np.arange(n)
    for block in BLOCKS:
        if n > block:
            yield f"the first tile of {block} is read again for all", i % block
            yield f"the second tile of {block} is the first again", np.where(i // block == 1, i - block, i)
            last = (n // block - 1) * block
            yield f"the last tile of {block} is the one before", np.where(i // block * block == last, i - block, i)
            yield f"the first {block} alone are read", np.where(i < block, i, -1)
    for block, rows, run in product((b for b in (32, 64, 128) if n % b == 0), (4, 8, 16), (1, 2)):
        turned = i.reshape(-1, rows, block // rows // run, run).swapaxes(1, 2).ravel()
        yield f"each {block} transposed as {rows} x {block // rows // run}, {run} together", turned


def in_order(x: np.ndarray, axis: int, order: np.ndarray) -> np.ndarray:
    """Return what is read of x along an axis."""
    lost = np.expand_dims(order < 0, [*range(x.ndim - 1)]).swapaxes(axis, -1)
    return np.where(lost, 0, x.take(order, axis)).astype(x.dtype)


# (number of the place along something, number of entries, length of a run) -> the entry that is read there.
_RULES: dict[str, Callable[[np.ndarray, int, int], np.ndarray]] = {
    "as if all were the first": lambda i, n, k: 0 * i,
    "as if all were the last": lambda i, n, k: 0 * i + n - 1,
    "that of the one before": lambda i, n, k: i - 1,
    "that of the next": lambda i, n, k: i + 1,
    "that of the one before, in a circle": lambda i, n, k: (i - 1) % n,
    "that of the next, in a circle": lambda i, n, k: (i + 1) % n,
    "counted from the end": lambda i, n, k: n - 1 - i,
    "by the place along {axis}": lambda i, n, k: i,
    "by the place along {axis}, modulo {n}": lambda i, n, k: i % n,
    "that of the first of each {k} along {axis}": lambda i, n, k: i // k * k,
    "that of the last of each {k} along {axis}": lambda i, n, k: i // k * k + k - 1,
    "one for each {k} along {axis}": lambda i, n, k: i // k,
    "one for each {k} along {axis}, modulo {n}": lambda i, n, k: i // k % n,
}
_RUNS = (2, 3, 4, 8, 16, 32)


def rules(
    shape: tuple[int, ...], n: int, axes: list[str], flat: dict[int, str], counts: Mapping[str, int] | None = None
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (rule, entry read at each place), the simplest first.

    shape: of the places; n: number of entries; axes: what each axis of the places counts, "axis H"
    flat:  number of axes -> what these count together, "all rows"
    counts: what may divide the entries, "num_groups" -> how many
    """
    places = np.indices(shape, np.int32)
    numbers = {axes[a]: places[a] for a in reversed(range(len(shape))) if shape[a] > 1}
    for a, of in flat.items():
        if a > 1:
            own = np.arange(int(np.prod(shape[:a]))).reshape(*shape[:a], *(1,) * (len(shape) - a))
            numbers[of] = own + 0 * places[0]
    seen = set[int]()
    known = {name: k for name, k in (counts or {}).items() if k < n and n % k == 0}
    for (axis, i), (name, k) in product(numbers.items(), known.items()):
        for of, m in ((name, k), (f"(number of entries / {name})", n // k)):
            if i.max() >= m > 1:  # else it is no other rule than those below
                seen |= {hash(read.tobytes()) for read in (i % m, i // m)}
                yield f"by the place along {axis}, modulo {of}", i % m
                yield f"one for each {of} along {axis}", np.minimum(i // m, n - 1)
        last = np.clip(i % (n // k) * k + i // (n // k), 0, n - 1)
        yield f"as if {name} were their last axis, by the place along {axis}", last
    for phrase, rule in _RULES.items():
        for axis, i in numbers.items():
            for k in _RUNS if "{k}" in phrase else (1,):
                read = np.clip(rule(i, n, k), 0, n - 1)
                if (key := hash(read.tobytes())) not in seen:
                    seen.add(key)
                    yield phrase.format(axis=axis, n=n, k=k), read
